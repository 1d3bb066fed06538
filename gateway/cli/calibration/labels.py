"""Reads label files for calibrations, and warns if a file has too few labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gateway.cli import options
from gateway.cli.output import UsageError, note
from pagantic_common.client.descriptions import count_of
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MAX_LABELS = 10_000
USEFUL_AREA = 0.7
USEFUL_LABELS = 30

LabelT = TypeVar("LabelT")


def read_labels(path: Path, form: str, label_of: Callable[[dict[str, Any]], LabelT | None]) -> list[LabelT]:
    """Return the labels in a file of JSON Lines.

    `label_of` returns the label of a JSON object, or None if the object is not a label. Raises UsageError with the line
    number and the expected form if a line is not a label.
    """
    lines = [(number, line) for number, line in enumerate(options.read_file(path).splitlines(), 1) if line.strip()]
    if not 1 <= len(lines) <= MAX_LABELS:
        raise UsageError(
            f"{str(path)!r} has {len(lines)} lines that are not empty: give 1 to {MAX_LABELS}, each as {form}"
        )
    labels = []
    for number, line in lines:
        where = f"line {number} of {str(path)!r}"
        try:
            value: Any = parse_json(line, is_rewritable=True)
        except JsonTextError as error:
            raise UsageError(f"{where} is not JSON: {error}") from None
        label = label_of(value) if isinstance(value, dict) else None
        if label is None:
            raise UsageError(f"{where} is no label: write {form}")
        labels.append(label)
    return labels


def note_few(count: int) -> None:
    """Print a note if there are too few labels for reliable numbers."""
    if count < USEFUL_LABELS:
        note(f"the numbers of {count_of(count, 'question')} are hardly reliable: label at least {USEFUL_LABELS}")
