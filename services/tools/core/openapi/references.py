"""Follows references within a document. Nothing outside of it is ever opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_MAX_HOPS = 16
_MAX_SHOWN_CHARS = 120
_MAX_INDEX_DIGITS = 9


class Unusable(Exception):
    """A part of a document cannot be used; the message is the reason. It never leaves this package."""


class References:
    """The targets of references in one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def find(self, reference: Any) -> Any:
        """Return what a reference such as `#/components/schemas/Pet` names. Raises Unusable."""
        if not isinstance(reference, str):
            raise Unusable("a '$ref' is not text")
        shown = shorten(reference)
        if not reference.startswith("#"):
            raise Unusable(f"it refers to {shown!r}, which is outside the document: bundle the document into one file")
        if not reference.startswith("#/"):
            raise Unusable(f"it refers to {shown!r}: only references that begin with '#/' are followed")
        value: Any = self._document
        for token in reference[2:].split("/"):
            value = _child_of(value, unquote(token).replace("~1", "/").replace("~0", "~"))
            if value is _MISSING:
                raise Unusable(f"it refers to {shown!r}, which the document does not have")
        return value

    def resolve(self, value: Any, kind: str) -> Mapping[str, Any]:
        """Return an object of a kind, such as a parameter, that stands here or is referred to. Raises Unusable."""
        for _ in range(_MAX_HOPS):
            if not isinstance(value, dict):
                raise Unusable(f"a {kind} is not an object")
            if "$ref" not in value:
                return value
            value = self.find(value["$ref"])
        raise Unusable(f"a {kind} refers to itself, or through more than {_MAX_HOPS} references")


def shorten(text: str) -> str:
    """Return the beginning of a document's own text, for a message."""
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
