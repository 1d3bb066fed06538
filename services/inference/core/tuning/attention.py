"""Chooses whether flash attention computes the attention, by what steps take with it and without, and by the load.

On a CPU, flash attention visits the cells that a row attends to, row by row. Without it, blocks of rows are multiplied
with all cells in use. So it is faster where sequences share little, and slower where they share much, and in prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

StepTimes = tuple[float, ...]  # one for each kind of step

_PROMPT_TOKENS = 33  # tokens of one sequence that no draft has
_APART_SHARE = 1 / 3  # largest share of the cells in use that a row of a step apart attends to
_MEMORY_S = 120.0  # seconds of steps that count; older ones count half
_ENOUGH_S = 20.0


class StepKind(IntEnum):
    """What decides how long the attention of a step takes."""

    ALONE = 0  # one sequence
    APART = 1  # sequences that share little
    SHARED = 2  # sequences that share most of their tokens
    PROMPT = 3  # many tokens of one sequence


def kind_of(parts: Sequence[tuple[int, int]], used_cells: int) -> StepKind:
    """Return the kind of a step, of which each sequence computes one of `parts`.

    Args:
        parts: The tokens that a sequence had before, and those that it computes.
        used_cells: Cells in use after the step.
    """
    if max(tokens for _, tokens in parts) >= _PROMPT_TOKENS:
        return StepKind.PROMPT
    if len(parts) == 1:
        return StepKind.ALONE
    attended = sum(before + tokens for before, tokens in parts)
    if attended <= used_cells * len(parts) * _APART_SHARE:
        return StepKind.APART
    return StepKind.SHARED


class StepLoad:
    """The seconds that recent steps of each kind took."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(StepKind, 0.0)

    @property
    def seconds(self) -> StepTimes:
        """Seconds by kind of step."""
        return tuple(self._seconds.values())

    def add(self, parts: Sequence[tuple[int, int]], used_cells: int, seconds: float) -> None:
        """Count a step; see `kind_of`. A step without parts does not count."""
        if not parts:
            return
        self._seconds[kind_of(parts, used_cells)] += seconds
        if sum(self._seconds.values()) > _MEMORY_S:
            self._seconds = {known: spent / 2 for known, spent in self._seconds.items()}


def relative_time(spent_s: StepTimes, current_ms: StepTimes, other_ms: StepTimes) -> float:
    """Return the time that a load would take the other way, as a share of what it took; 1 while it is too short.

    Args:
        spent_s: What the load took, by kind of step.
        current_ms: Measured times of a step of each kind.
        other_ms: The same, the other way.
    """
    total_s = sum(spent_s)
    if total_s < _ENOUGH_S:
        return 1.0
    ratios = (other / current for other, current in zip(other_ms, current_ms, strict=True))
    return sum(spent * ratio for spent, ratio in zip(spent_s, ratios, strict=True)) / total_s
