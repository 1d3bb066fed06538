"""Formats reports for terminals: tables of means and differences, and lines about failures and usage."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gateway.evaluation.comparing.comparison import Comparison, Difference
from gateway.evaluation.comparing.resampling import Interval
from gateway.evaluation.reporting.figures import Figures, Mean
from gateway.evaluation.running.results import Result, Results
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.tables import cell, list_table

LOWEST = 5
_ROUNDING = 1e-6  # The tolerance for a score of 1: the computed cosine of a text with itself is not exactly 1.
SHOWN_CHARS = 100
_DIGITS = {"USD": 6, "s": 3, "tokens": 1}  # Digits after the decimal point; scores have 4.
_NUMBERS = {"cases", "mean", "95 % interval", "pairs", "before", "after", "difference", "p", "adjusted p"}


def means_table(means: Sequence[Mean]) -> Table:
    """Return a table of means, with a column for tags if any row has a tag."""
    tags = ["tag"] if any(mean.tag for mean in means) else []
    table = list_table([*tags, "score", "cases", "mean", "95 % interval"], right=_NUMBERS)
    for mean in means:
        cases = str(mean.cases)
        if mean.missing:
            cases += f" ({mean.missing} without)"
        shown = [cases, number(mean.mean, mean.unit), interval_text(mean.interval, mean.unit)]
        table.add_row(*([cell(mean.tag)] if tags else []), cell(mean.scorer), *shown)
    return table


def differences_table(rows: Sequence[Difference]) -> Table:
    """Return a table of differences, with a column for tags if any row has a tag."""
    tags = ["tag"] if any(row.tag for row in rows) else []
    columns = ["score", "pairs", "before", "after", "difference", "95 % interval", "p", "adjusted p"]
    table = list_table([*tags, *columns], right=_NUMBERS)
    for row in rows:
        table.add_row(*([cell(row.tag)] if tags else []), cell(row.scorer), *difference_cells(row))
    return table


def difference_cells(row: Difference) -> list[str]:
    """Return the table cells of a difference: pairs, before, after, difference, interval, p and adjusted p."""
    return [
        str(row.pairs),
        number(row.before, row.unit),
        number(row.after, row.unit),
        number(row.difference, row.unit, signed=True),
        interval_text(row.interval, row.unit, signed=True),
        f"{row.p:.4f}",
        f"{row.p_adjusted:.4f}",
    ]


def outcome_lines(figures: Figures) -> list[str]:
    """Return lines about the numbers of finished and failed cases, and their usage."""
    failed = ", ".join(f"{count} {code}" for code, count in sorted(figures.failed.items()))
    lines = [f"{figures.name}: {figures.done} of {count_of(figures.cases, 'case')}; failed: {failed or 'none'}"]
    usage = [f"{figures.prompt_tokens} prompt and {figures.output_tokens} output tokens"]
    if figures.latency_s:
        usage.append("latency " + ", ".join(f"{name} {value:.2f} s" for name, value in figures.latency_s.items()))
    if figures.models:
        usage.append(f"answered by {', '.join(figures.models)}")
    return [*lines, "; ".join(usage)]


def unpaired_line(comparison: Comparison) -> str:
    """Return a line about the cases that were not compared."""
    line = count_of(comparison.pairs, "pair")
    apart = {
        "only in the baseline": comparison.only_before,
        "only in the other": comparison.only_after,
        "that ask or expect something else": comparison.changed,
    }
    parts = [f"{count_of(count, 'case')} {words}" for words, count in apart.items() if count]
    if parts:
        line += f"; not compared: {', '.join(parts)}"
    return line


def lowest_lines(results: Results) -> list[str]:
    """Return lines about the failed cases and the cases with the lowest scores below 1."""
    ranked = [(low, result) for result in results.by_case.values() if (low := lowest_of(results, result)) is not None]
    ranked.sort(key=lambda pair: (not pair[1].error, pair[0][0]))
    lines = []
    for (value, scorer), result in ranked[:LOWEST]:
        reason = result.error_message or result.scores[scorer].note
        if result.error:
            reason = f"{result.error}: {reason}"
        lines.append(f"{result.case}: {scorer} {value:.3f}; {' '.join(reason.split())[:SHOWN_CHARS]}".rstrip("; "))
    return lines


def lowest_of(results: Results, result: Result) -> tuple[float, str] | None:
    """Return a case's lowest score below 1 among scores without a unit, with its name.

    Returns None if there is no such score.
    """
    units = results.header.units
    scores = [
        (score.value, name)
        for name, score in result.scores.items()
        if not units.get(name) and score.value is not None and score.value < 1 - _ROUNDING
    ]
    return min(scores, default=None)


def number(value: float | None, unit: str = "", *, signed: bool = False) -> str:
    """Return a value with its unit, or `-` for None."""
    if value is None:
        return "-"
    sign = "+" if signed else ""
    return f"{value:{sign}.{_DIGITS.get(unit, 4)}f} {unit}".rstrip()


def interval_text(interval: Interval | None, unit: str = "", *, signed: bool = False) -> str:
    """Return the bounds of an interval, or `-` for None."""
    if interval is None:
        return "-"
    low = number(interval.low, unit, signed=signed).removesuffix(unit).rstrip()
    return f"{low} to {number(interval.high, unit, signed=signed)}"
