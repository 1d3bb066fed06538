"""Translates an OpenAPI document to tools, with the reason for each operation that cannot be a tool.

No JSON value raises an error here unless it is nested more deeply than `parse_json` allows.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from services.tools.core.openapi.operations import LeftOut, Operation, OperationReader, Problem, list_operations
from services.tools.core.openapi.parameters import Supplied
from services.tools.core.openapi.references import MAX_DOCUMENT_PARTS, References, shorten

_VERSION = re.compile(r"3\.[01](\.\d{1,4})?")


@dataclass(frozen=True, slots=True)
class Translation:
    """The selected operations of a document. `unmatched` lists the patterns that match no operation."""

    operations: tuple[Operation, ...]
    left_out: tuple[LeftOut, ...]
    unmatched: tuple[str, ...] = ()


def refusal_of(document: Any) -> str:
    """Return the reason why a document cannot be used at all, or an empty string if it can be used."""
    if not isinstance(document, dict):
        return "it is not an object"
    if "swagger" in document:
        return f"it is Swagger {shorten(str(document['swagger']))}: convert it to OpenAPI 3.0 or 3.1"
    version = document.get("openapi")
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        return f"'openapi' is {shorten(str(version))!r}: versions 3.0 and 3.1 are read"
    if not isinstance(document.get("paths"), dict):
        return "it has no paths"
    return ""


def translate(
    document: Any,
    *,
    problems: Collection[Problem] = (),
    supplied: Supplied | None = None,
    patterns: Collection[str] = ("*",),
    max_parts: int = MAX_DOCUMENT_PARTS,
) -> Translation:
    """Return the operations whose names match a pattern such as `list*`. A rejected document has no operations.

    Operations beyond the first `max_parts` parts of the document are left out.
    """
    if refusal_of(document):
        return Translation((), ())
    references = References(document, max_parts)
    reader = OperationReader(
        references,
        document["openapi"].startswith("3.0"),
        _problems_by_path(problems),
        Supplied() if supplied is None else supplied,
    )
    operations: list[Operation] = []
    left_out: list[LeftOut] = []
    unmatched = set(patterns)
    for entry in list_operations(document, references):
        matching = {pattern for pattern in patterns if fnmatchcase(entry.name, pattern)}
        unmatched -= matching
        if not matching:
            continue
        result = entry if isinstance(entry, LeftOut) else reader.read(entry)
        if isinstance(result, LeftOut):
            left_out.append(result)
        else:
            operations.append(result)
    return Translation(tuple(operations), tuple(left_out), tuple(sorted(unmatched)))


def _problems_by_path(problems: Collection[Problem]) -> dict[str, list[Problem]]:
    """Group the problems by path, so that an operation need not search all of them."""
    by_path: dict[str, list[Problem]] = {}
    for place, words in problems:
        if len(place) > 1 and place[0] == "paths":
            by_path.setdefault(str(place[1]), []).append((place, words))
    return by_path
