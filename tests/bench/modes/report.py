"""Tables of the figures as Markdown, and a plot for each task."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.evaluation.comparing.comparison import Difference
from gateway.evaluation.comparing.resampling import Interval, adjust_for_several
from gateway.evaluation.running.results import read_results
from tests.bench.modes.figures import ArmFigures, Measured, difference, figures_of, read
from tests.bench.modes.plots import draw
from tests.bench.modes.suites import ARMS, CHAT, HIDDEN, RULES, SHOWN, TITLES, VOTES

PAIRS = (
    (HIDDEN, SHOWN),
    *(("votes-1", f"votes-{n}") for n in VOTES[1:]),
    *((SHOWN, f"votes-{n}") for n in VOTES[1:]),
    (SHOWN, RULES),
)
COLUMNS = (
    "mode",
    "right",
    "95 % interval",
    "against CHAT",
    "right of answered",
    "rule holds",
    "tokens",
    "cost",
    "time",
)


def name_of(task: str, model: str, block: int) -> str:
    """Return the name of the evaluation of a block, from 0."""
    return f"{task}-{model}-{block + 1:02d}"


def is_complete(path: Path) -> bool:
    """Tell whether a block has all of its results."""
    return path.exists() and read_results(path).is_complete


def write(results: Path, tasks: Sequence[str], models: Sequence[str], plots: Path | None) -> None:
    """Print the tables, and draw the plots where a folder for them is given."""
    for task in tasks:
        found = {model: read(sorted(results.glob(f"{task}-{model}-*.jsonl"))) for model in models}
        measured = {model: one for model, one in found.items() if one is not None}
        for model, one in measured.items():
            sys.stdout.write("\n".join([f"\n{task}, {model}, {one.cases} samples\n", *table(one), "", *pairs(one), ""]))
        if plots is not None and measured:
            rows = {model: [figures_of(one, arm, CHAT) for arm in ARMS] for model, one in measured.items()}
            (plots / f"modes-{task}.svg").write_text(draw(rows), encoding="utf-8")


def table(measured: Measured) -> Iterator[str]:
    """Yield the lines of a table of all arms; tokens, cost and time are ratios to CHAT, whose own are written out."""
    rows = [figures_of(measured, arm, CHAT) for arm in ARMS]
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for row in rows:
        yield f"| {' | '.join(_cells(row, rows[0]))} |"


def pairs(measured: Measured) -> Iterator[str]:
    """Yield a line for each pair of arms: the difference of the second one from the first one, and its adjusted p."""
    rows = [difference(measured, before, after) for before, after in PAIRS]
    adjusted = adjust_for_several([row.p for row in rows])
    for (before, after), row, p in zip(PAIRS, rows, adjusted, strict=True):
        yield f"- {TITLES[after]}, against {TITLES[before]}: {difference_text(row)}, adjusted p {p:.2f}"


def difference_text(row: Difference) -> str:
    """Return a difference in points with its interval."""
    return f"{100 * row.difference:+.0f} ({interval_text(row.interval, signed=True)})"


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """Return an interval in percent; `-` for None."""
    if interval is None:
        return "-"
    sign = "+" if signed else ""
    return f"{100 * interval.low:{sign}.0f} to {100 * interval.high:{sign}.0f}"


def _cells(row: ArmFigures, chat: ArmFigures) -> list[str]:
    own = row.arm == chat.arm
    right = percent(row.right)
    if row.failed:
        right += f", {sum(row.failed.values())} failed"
    if row.cut:
        right += f", {row.cut} cut"
    return [
        TITLES[row.arm],
        right,
        interval_text(row.interval),
        difference_text(row.gain) if row.gain else "",
        percent(row.answered),
        percent(row.holds),
        f"{row.tokens:.0f}" if own else ratio(row.tokens, chat.tokens),
        f"${1e6 * row.cost_usd:.0f} per million" if own else ratio(row.cost_usd, chat.cost_usd),
        f"{row.latency_s:.1f} s" if own else ratio(row.time_ratio, 1.0),
    ]


def percent(share: float | None) -> str:
    """Return a share in percent; `-` for None."""
    return "-" if share is None else f"{100 * share:.0f} %"


def ratio(value: float, base: float) -> str:
    """Return how many times a base a value is; `-` for a base of 0."""
    return f"{value / base:.1f}x" if base else "-"
