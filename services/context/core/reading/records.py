"""Writes JSON and tables as lines that are understandable without the preceding lines."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from services.context.core.reading.bounds import ReadingBounds
from services.context.core.reading.draft import ReadText, TextDraft

_DELIMITERS: Final = ",;\t|"
_SNIFFED_CHARS: Final = 65_536


def read_json(text: str, bounds: ReadingBounds) -> ReadText:
    """Return a line `path: value` for each value that is not an object or a list. Text that is not JSON stays as it is.

    A chunk of these lines thus contains the names of all objects around its values.
    """
    try:
        value = parse_json(text)
    except JsonTextError:
        return ReadText(text)
    return _read_values([("", value)], bounds)


def read_json_lines(text: str, bounds: ReadingBounds) -> ReadText:
    """Return JSON lines as paths and values, with the lines numbered from 0. Any other text stays unchanged."""
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        values = [(f"[{number}]", parse_json(line)) for number, line in enumerate(lines)]
    except JsonTextError:
        return ReadText(text)
    return _read_values(values, bounds)


def _read_values(values: Iterable[tuple[str, Any]], bounds: ReadingBounds) -> ReadText:
    draft = TextDraft(bounds)
    for root, value in values:
        for path, leaf in _leaves(root, value):
            draft.add_line(f"{path}: {_leaf_text(leaf)}" if path else _leaf_text(leaf))
    return draft.finish()


def _leaves(root: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield scalar values and empty containers in order, each with its path."""
    waiting = [(root, value)]
    while waiting:
        path, current = waiting.pop()
        children: list[tuple[str, Any]] = []
        if isinstance(current, dict):
            children = [(f"{path}.{name}" if path else name, child) for name, child in current.items()]
        elif isinstance(current, list):
            children = [(f"{path}[{position}]", child) for position, child in enumerate(current)]
        if children:
            waiting.extend(reversed(children))
        else:
            yield path, current


def _leaf_text(leaf: Any) -> str:
    if isinstance(leaf, str):
        return leaf
    return dump_json(leaf)


def read_table(text: str, bounds: ReadingBounds) -> ReadText:
    """Return the rows of a delimited table in the form of `write_rows`.

    Raises InvalidRequest if the table is malformed.
    """
    csv.field_size_limit(bounds.max_bytes)
    rows = csv.reader(text.splitlines(keepends=True), delimiter=_delimiter_of(text))
    draft = TextDraft(bounds)
    try:
        write_rows(draft, rows)
    except csv.Error as error:
        raise InvalidRequest(f"the table cannot be read: {error}; send it as plain text") from None
    return draft.finish()


def write_rows(draft: TextDraft, rows: Iterable[Sequence[str]]) -> None:
    """Write a line `name: value; name: value` for each row after the first row, which holds the names of the columns.

    Cells without a value are left out. A table with a single row has no column names.
    """
    names: Sequence[str] | None = None
    is_alone = True
    for row in rows:
        cells = [" ".join(cell.split()) for cell in row]
        if not any(cells):
            continue
        if names is None:
            names = cells
            continue
        is_alone = False
        pairs = (_cell_text(names, position, cell) for position, cell in enumerate(cells) if cell)
        draft.add_line("; ".join(pairs))
    if names is not None and is_alone:
        draft.add_line("; ".join(filter(None, names)))


def _cell_text(names: Sequence[str], position: int, cell: str) -> str:
    if position < len(names) and names[position]:
        return f"{names[position]}: {cell}"
    return cell


def _delimiter_of(text: str) -> str:
    """Return the delimiter that occurs most often in the first line."""
    first = text[:_SNIFFED_CHARS].lstrip().split("\n", 1)[0]
    return max(_DELIMITERS, key=first.count)
