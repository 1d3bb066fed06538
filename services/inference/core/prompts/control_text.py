"""Keeps text that merely looks like control tokens from becoming them.

A rendered chat prompt is tokenized so that the template's own `<|im_end|>` is the control token. Were a user's message
to contain those characters, it could end its turn and speak as the system. So what looks like a control token in a
message is hidden behind a marker while the template renders, and tokenized as plain characters afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_OPEN, _CLOSE = "\ue000", "\ue001"  # private use: no text has them by accident, and by intent they are hidden too


class ControlTextGuard:
    """Hides control texts in one prompt; make a new one for each."""

    def __init__(self, control_texts: Iterable[str]) -> None:
        longest_first = sorted(set(control_texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, [*longest_first, _OPEN, _CLOSE])))
        self._hidden: list[str] = []

    def hide(self, value: Any) -> Any:
        """Return `value` with every control text in its strings behind a marker, however deeply nested."""
        match value:
            case str():
                return self._pattern.sub(self._mark, value)
            case list():
                return [self.hide(item) for item in value]
            case dict():
                return {self.hide(key): self.hide(item) for key, item in value.items()}
            case _:
                return value

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """Return the pieces of a rendered prompt, in order, each with whether control tokens in it are meant."""
        pieces = re.split(f"{_OPEN}(\\d+){_CLOSE}", rendered)
        parts = [
            (self._hidden[int(piece)], False) if index % 2 else (piece, True) for index, piece in enumerate(pieces)
        ]
        return [(text, is_meant) for text, is_meant in parts if text]

    def _mark(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"{_OPEN}{len(self._hidden) - 1}{_CLOSE}"
