"""JSON of text that nearly is JSON.

Level 1 completes text that was cut off (`json_completion`); level 2 (`tolerant_json`) forgives more, and is tried only
when level 1 fails. Both are one pass without recursion.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.text.json_completion import complete_json
from services.constraint.core.tolerant_json import parse_tolerant


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The text, valid JSON or else unchanged; the level that it took, and what was done, in order."""

    text: str
    valid: bool
    level: int = 0
    repairs: tuple[str, ...] = ()


def is_json(text: str) -> bool:
    """Whether the text is strict JSON."""
    try:
        parse_json(text)
    except JsonTextError:
        return False
    return True


def repair_json(text: str) -> RepairResult:
    """Repair; valid JSON is returned unchanged, and so is what cannot be repaired, with valid=False. Never raises."""
    if is_json(text):
        return RepairResult(text, valid=True)
    completed = complete_json(text.rstrip())
    if completed is not None and is_json(completed[0]):
        return RepairResult(completed[0], valid=True, level=1, repairs=completed[1])
    tolerated = parse_tolerant(text)
    if tolerated is not None and is_json(tolerated[0]):
        return RepairResult(tolerated[0], valid=True, level=2, repairs=tolerated[1])
    return RepairResult(text, valid=False)
