"""Turns text that is nearly JSON into JSON.

Level 1 (`json_completion`) completes text that was cut off. Level 2 (`tolerant_json`) is more forgiving and is tried
only if level 1 fails. Level 1 reads the text in a single pass without recursion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagantic_common.domain.text.json_completion import complete_json
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.constraint.core.paths import printable
from services.constraint.core.repair.repeated_keys import without_repeated_keys
from services.constraint.core.repair.tolerant_json import parse_tolerant


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The resulting text (unchanged if it cannot become valid JSON), the repair level, and the repairs in order."""

    text: str
    valid: bool
    level: int = 0
    repairs: tuple[str, ...] = ()


def find_json_problem(text: str) -> str:
    """Return the reason why the text is not strict JSON, or an empty string if it is strict JSON."""
    try:
        parse_json(text)
    except JsonTextError as error:
        return str(error)
    return ""


def is_json(text: str) -> bool:
    """Return whether the text is strict JSON."""
    return not find_json_problem(text)


def repair_json(text: str) -> RepairResult:
    """Repair a text without raising. Valid JSON stays unchanged, and so does irreparable text, with valid=False."""
    if is_json(text):
        return RepairResult(text, valid=True)
    completed = complete_json(text.rstrip())
    if completed is not None and is_json(completed[0]):
        return RepairResult(completed[0], valid=True, level=1, repairs=completed[1])
    tolerated = parse_tolerant(text)
    if tolerated is not None and is_json(tolerated[0]):
        return RepairResult(tolerated[0], valid=True, level=2, repairs=tolerated[1])
    return RepairResult(text, valid=False)


def repair_document(text: str) -> RepairResult:
    """Repair a text and remove repeated keys from its objects."""
    result = repair_json(text)
    if not result.valid:
        return result
    document, keys = without_repeated_keys(result.text)
    repeated = tuple(f'the key "{printable(key)}" was written more than once: the last value counts' for key in keys)
    return replace(result, text=document, repairs=(*result.repairs, *repeated))
