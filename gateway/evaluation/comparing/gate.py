"""The gate: the scores that an evaluation must reach, and the permitted decline from a baseline.

The gate fails in three cases: the mean of a score is below its minimum; a score fell significantly below the baseline
(an adjusted p below 5 %); or a score fell, or a measure rose, by more than its limit, significantly or not. Measures
such as the latency fail the gate only beyond their configured limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.evaluation.comparing.comparison import Comparison, Difference

SIGNIFICANCE = 0.05
EVERY = ""  # A limit under this name applies to every score without a limit under its own name.
_ROUNDING = 1e-9  # With this tolerance, 0.7 - 0.6 meets a limit of 0.1.


@dataclass(frozen=True, slots=True)
class Limits:
    """Minimum means and maximum regressions by score name. EVERY applies to every other score that has no unit."""

    min_scores: Mapping[str, float] = field(default_factory=dict)
    max_regressions: Mapping[str, float] = field(default_factory=dict)

    def check_names(self, units: Mapping[str, str]) -> None:
        """Raise ValueError if a limit names a score that does not exist."""
        for name in [*self.min_scores, *self.max_regressions]:
            if name not in units and name != EVERY:
                raise ValueError(f"there is no score {name!r}: there are {', '.join(units)}")


def failures_of(
    means: Mapping[str, float | None], units: Mapping[str, str], limits: Limits, comparison: Comparison | None
) -> list[str]:
    """Return a message for each reason why the gate fails; the list is empty if the gate passes.

    Args:
        means: The mean of each score, or None if no case has the score.
        units: The unit of each score.
        limits: The limits.
        comparison: The comparison with the baseline, or None without a baseline.
    """
    failures = []
    for scorer, unit in units.items():
        least = _limit_of(limits.min_scores, scorer, unit)
        mean = means.get(scorer)
        if least is None:
            continue
        if mean is None:
            failures.append(f"{scorer}: no case has this score")
        elif mean < least - _ROUNDING:
            failures.append(f"{scorer}: the mean {mean:.4f} is below {least:g}")
    rows: Sequence[Difference] = comparison.overall if comparison else ()
    return failures + [reason for row in rows if (reason := _regression_of(row, limits))]


def _regression_of(row: Difference, limits: Limits) -> str:
    unit = f" {row.unit}" if row.unit else ""
    words = f"{row.scorer}: from {row.before:.4f} to {row.after:.4f}{unit}"
    largest = _limit_of(limits.max_regressions, row.scorer, row.unit)
    if largest is not None and row.regression > largest + _ROUNDING:
        return f"{words}, worse by more than {largest:g}"
    if not row.unit and row.regression > 0 and row.p_adjusted < SIGNIFICANCE:
        return f"{words}, significant (p {row.p_adjusted:.4f})"
    return ""


def _limit_of(limits: Mapping[str, float], scorer: str, unit: str) -> float | None:
    if scorer in limits or unit:
        return limits.get(scorer)
    return limits.get(EVERY)
