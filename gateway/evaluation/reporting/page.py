"""Renders a report as a self-contained HTML page without scripts. All text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from gateway.evaluation.comparing.comparison import Comparison
from gateway.evaluation.reporting.figures import Figures
from gateway.evaluation.reporting.tables import (
    difference_cells,
    interval_text,
    number,
    outcome_lines,
    unpaired_line,
)
from gateway.evaluation.running.results import Result, Results

TEMPLATE = Path(__file__).with_name("page.html")
MAX_CASES_SHOWN = 2_000
MAX_TEXT_CHARS = 4_000


def page_of(
    results: Results, figures: Figures, comparison: Comparison | None, gate: Sequence[str] | None, baseline: str = ""
) -> str:
    """Return the page with figures, the comparison and the gate if they exist, and the cases, failed cases first."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"number": number, "interval": interval_text}
    cases = {case["name"]: case for case in results.header.suite["cases"]}
    stored = sorted(results.by_case.values(), key=lambda result: (not result.error, _worst(results, result)))
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        header=results.header,
        figures=figures,
        outcome=outcome_lines(figures),
        comparison=comparison,
        unpaired=unpaired_line(comparison) if comparison else "",
        difference_cells=difference_cells,
        baseline=baseline,
        gate=gate,
        cases=[(result, _asked(cases[result.case])) for result in stored[:MAX_CASES_SHOWN]],
        left_out=max(0, len(stored) - MAX_CASES_SHOWN),
        limit=MAX_TEXT_CHARS,
    )


def _worst(results: Results, result: Result) -> float:
    units = results.header.units
    values = [score.value for name, score in result.scores.items() if not units.get(name) and score.value is not None]
    return min(values, default=2.0)  # The value sorts after all scores, which are at most 1.


def _asked(case: Mapping[str, Any]) -> dict[str, str]:
    """Return the input and expectations of a case as strings by name. Missing parts are omitted."""
    names = ("input", "expected", "rubric", "tools", "relevant")
    return {name: str(case[name])[:MAX_TEXT_CHARS] for name in names if case.get(name) not in (None, "")}
