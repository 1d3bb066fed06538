"""Follows references within a document. Nothing outside the document is ever opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

MAX_OPERATION_PARTS = 65_536
MAX_DOCUMENT_PARTS = 2_000_000
_CHARS_OF_PART = 32
_MAX_REFERENCE_CHARS = 1024
_MAX_HOPS = 16
_MAX_SHOWN_CHARS = 120
_MAX_INDEX_DIGITS = 9


class Unusable(Exception):
    """A part of a document cannot be used. The message is the reason. The error never leaves this package."""


class TooManyParts(Unusable):
    """The budget for the parts of an operation or of the document is used up."""


class Budget:
    """The number of document parts that may still be read, for an operation and in total.

    References allow a small document to describe any number of parts. All parts cost about the same: a schema, a
    parameter, a property, or a few characters of a tool's schema.
    """

    def __init__(self, max_parts: int) -> None:
        self._max_parts = max_parts
        self._left = max_parts
        self._left_of_operation = MAX_OPERATION_PARTS

    def start_operation(self) -> None:
        """Start counting the parts of the next operation. Raises TooManyParts if no part is left for the operation."""
        self._left_of_operation = MAX_OPERATION_PARTS
        self.spend(1)

    def spend(self, parts: int) -> None:
        """Count parts before they are read. Raises TooManyParts if the budget is exceeded, and then on every call."""
        self._left -= parts
        self._left_of_operation -= parts
        if self._left < 0:
            raise TooManyParts(
                f"the operations before it take up the {self._max_parts} parts that are read of a document: "
                "select fewer in 'operations'"
            )
        if self._left_of_operation < 0:
            raise TooManyParts(f"it has more than {MAX_OPERATION_PARTS} parts: its schemas repeat too many others")

    def spend_text(self, text: str) -> None:
        """Count the parts of a text. Raises TooManyParts."""
        self.spend(len(text) // _CHARS_OF_PART)


class References:
    """Finds the targets of references in a document, and holds the budget for reading parts of the document."""

    def __init__(self, document: Mapping[str, Any], max_parts: int = MAX_DOCUMENT_PARTS) -> None:
        self._document = document
        self.budget = Budget(max_parts)

    def find(self, reference: Any) -> Any:
        """Return the target of a reference such as `#/components/schemas/Pet`. Raises Unusable."""
        if not isinstance(reference, str):
            raise Unusable("a '$ref' is not text")
        shown = shorten(reference)
        if not reference.startswith("#"):
            raise Unusable(f"it refers to {shown!r}, which is outside the document: bundle the document into one file")
        if len(reference) > _MAX_REFERENCE_CHARS:
            raise Unusable(f"it refers to {shown!r}: references have at most {_MAX_REFERENCE_CHARS} characters")
        if not reference.startswith("#/"):
            raise Unusable(f"it refers to {shown!r}: only references that begin with '#/' are followed")
        value: Any = self._document
        for token in reference[2:].split("/"):
            value = _child_of(value, unquote(token).replace("~1", "/").replace("~0", "~"))
            if value is _MISSING:
                raise Unusable(f"it refers to {shown!r}, which the document does not have")
        return value

    def resolve(self, value: Any, kind: str) -> Mapping[str, Any]:
        """Return an object of a kind, such as a parameter, given directly or by a reference. Raises Unusable."""
        for _ in range(_MAX_HOPS):
            if not isinstance(value, dict):
                raise Unusable(f"a {kind} is not an object")
            if "$ref" not in value:
                return value
            value = self.find(value["$ref"])
        raise Unusable(f"a {kind} refers to itself, or through more than {_MAX_HOPS} references")


def shorten(text: str) -> str:
    """Return a prefix of a document's text for a message."""
    if len(text) <= _MAX_SHOWN_CHARS:
        return text
    return text[:_MAX_SHOWN_CHARS] + "…"


_MISSING = object()


def _child_of(value: Any, token: str) -> Any:
    if isinstance(value, dict):
        return value.get(token, _MISSING)
    if isinstance(value, list) and token.isascii() and token.isdecimal() and len(token) <= _MAX_INDEX_DIGITS:
        index = int(token)
        if index < len(value):
            return value[index]
    return _MISSING
