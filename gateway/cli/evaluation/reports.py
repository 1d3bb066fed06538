"""Prints reports of evaluations and exits with the code that the gate determines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from gateway.cli.failures import EXIT_FAILED
from gateway.cli.output import UsageError, note, say, say_json, show
from gateway.evaluation.comparing.comparison import Comparison, compare
from gateway.evaluation.comparing.gate import EVERY, Limits, failures_of
from gateway.evaluation.reporting.figures import Figures, as_json, figures_of, scored_cases, shared_units
from gateway.evaluation.reporting.page import page_of
from gateway.evaluation.reporting.tables import (
    differences_table,
    lowest_lines,
    means_table,
    outcome_lines,
    unpaired_line,
)
from gateway.evaluation.running.results import Results, ResultsError, read_results
from pagantic_common.domain.text.json_text import dump_json


@dataclass(frozen=True, slots=True)
class Shown:
    """The form of a report and the limits of the gate."""

    as_json: bool = False
    html: Path | None = None
    limits: Limits = field(default_factory=Limits)


def find(folder: Path, name: str) -> Results:
    """Return the results of an evaluation, given its name or its file. Raises UsageError if they cannot be read."""
    path = Path(name)
    if path.suffix != ".jsonl":
        path = results_path(folder, name)
    try:
        return read_results(path)
    except ResultsError as error:
        raise UsageError(str(error)) from None


def results_path(folder: Path, name: str) -> Path:
    """Return the path of an evaluation's results file."""
    return folder / f"{name}.jsonl"


def limits_of(min_scores: Sequence[str], max_regressions: Sequence[str]) -> Limits:
    """Return the limits of the gate. Raises UsageError if a limit is invalid."""
    return Limits(_named("--min-score", min_scores), _named("--max-regression", max_regressions))


def report(results: Results, shown: Shown, baseline: Results | None, *, is_gated: bool) -> None:
    """Print a report, write the HTML page, and exit with 1 if the gate fails. Raises UsageError on invalid input."""
    figures = figures_of(results)
    comparison = None
    name = ""
    if baseline is not None:
        name = baseline.header.name
        comparison = compare(scored_cases(baseline), scored_cases(results), shared_units(baseline, results))
        if not comparison.pairs:
            raise UsageError(
                f"{results.header.name!r} and {name!r} have no case in common: there is nothing to compare"
            )
    failures: list[str] | None = None
    if is_gated:
        failures = _failures(results, figures, comparison, shown.limits)
    if shown.html is not None:
        _write(shown.html, page_of(results, figures, comparison, failures, name))
    if shown.as_json:
        say_json(dump_json(as_json(results, figures, comparison, failures, name)))
    else:
        _print(results, figures, comparison, name)
    if failures:
        for failure in failures:
            note(f"gate: {failure}")
        raise typer.Exit(EXIT_FAILED)
    if failures is not None:
        note("gate: passed")


def _failures(results: Results, figures: Figures, comparison: Comparison | None, limits: Limits) -> list[str]:
    try:
        limits.check_names(results.header.units)
    except ValueError as error:
        raise UsageError(str(error)) from None
    failures = failures_of(figures.overall, results.header.units, limits, comparison)
    if not results.is_complete:
        failures.append(f"{figures.done} of {figures.cases} cases have results: the evaluation has not ended")
    return failures


def _print(results: Results, figures: Figures, comparison: Comparison | None, baseline: str) -> None:
    for line in outcome_lines(figures):
        say(line)
    show(means_table(figures.means))
    if comparison is not None:
        say(f"compared with {baseline}: {unpaired_line(comparison)}")
        show(differences_table(comparison.overall))
    if comparison is not None and comparison.by_tag:
        show(differences_table(comparison.by_tag))
    elif figures.by_tag:
        show(means_table(figures.by_tag))
    if lines := lowest_lines(results):
        say("the lowest:")
        for line in lines:
            say(f"  {line}")


def _named(option: str, texts: Sequence[str]) -> dict[str, float]:
    limits = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            limits[name or EVERY] = float(number)
        except ValueError:
            raise UsageError(f"{option} {text!r}: write a number, or NAME=NUMBER") from None
    return limits


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}") from None
    note(f"wrote {path}")
