"""Keeps control texts in a message from becoming control tokens.

A rendered chat prompt is tokenized so that the template's own `<|im_end|>` is the control token. If a user's message
contained those characters, it could end its turn and speak as the system. So the guard hides the control texts of
messages behind a marker while the template renders, and tokenizes them as plain characters afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# Characters for private use; the guard hides them too, so that no message has one.
_OPEN, _CLOSE = "\ue000", "\ue001"
PLACE = "\ue002"  # stands for a text that is put in after the template has rendered
IMAGE_MARK = "\ue003"


class ControlTextGuard:
    """Hides control texts in one prompt; make a new one for each."""

    def __init__(self, control_texts: Iterable[str]) -> None:
        longest_first = sorted(set(control_texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, [*longest_first, _OPEN, _CLOSE, PLACE, IMAGE_MARK])))
        self._hidden: list[str] = []

    def hide(self, value: Any) -> Any:
        """Return a JSON value with every control text in its strings replaced by a marker."""
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
        """Return the pieces of a rendered prompt, in order, each with whether its control texts are control tokens."""
        pieces = re.split(f"{_OPEN}(\\d+){_CLOSE}", rendered)
        # Every second piece is the number of a hidden text.
        pieces[1::2] = [self._hidden[int(number)] for number in pieces[1::2]]
        return [(piece, index % 2 == 0) for index, piece in enumerate(pieces) if piece]

    def _mark(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"{_OPEN}{len(self._hidden) - 1}{_CLOSE}"
