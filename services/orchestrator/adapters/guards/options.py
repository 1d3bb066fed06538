"""Reads the options of guards. Each function raises ValueError if an option is invalid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_TEXTS: Final = 10_000


def check_names(options: Mapping[str, Any], *known: str) -> None:
    """Raise ValueError if there is an unknown option."""
    if unknown := next((name for name in options if name not in known), None):
        raise ValueError(f"option {unknown!r} is not known: {', '.join(known) or 'it takes none'}")


def read_texts(options: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return a list option. Raises ValueError if a text is blank."""
    texts = options.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"option {name!r} is not a list of texts that are not blank")
    if len(texts) > MAX_TEXTS:
        raise ValueError(f"option {name!r} has {len(texts)} texts, at most {MAX_TEXTS} are taken")
    return texts


def read_number(options: Mapping[str, Any], name: str, default: float, *, most: float) -> float:
    """Return a numeric option, which must be from 0 to `most`."""
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(f"option {name!r} is not a number from 0 to {most:g}")
    return value
