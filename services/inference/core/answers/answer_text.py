"""The text of an answer while it arrives: what is held back, and what is shown as what. Knows no form of tool calls."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from services.inference.core.answers.json_scan import JSON_SPACES, JsonScan
from services.inference.core.generation import ToolCallDelta

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A rule in progress: it pauses where it needs the next character, and returns what it found."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The next of an answer: one of content, reasoning, or a piece of a tool call."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


Kind = Literal["content", "reasoning"] | ToolCallDelta


class AnswerText:
    """Characters that arrive, with the current one to look at; "" where the output has ended.

    A rule looks at `char` and moves past it by one of `hold` (not known yet what it is) and `pass_shown`. What is held
    is shown by `release`, or dropped by `drop` where it was markup.
    """

    def __init__(self) -> None:
        self.char = ""
        self._held: list[str] = []
        self._shown: list[tuple[Kind, list[str]]] = []

    @property
    def held(self) -> str:
        """Text that was passed without being shown or dropped."""
        return "".join(self._held)

    def hold(self) -> Reading[None]:
        """Move past the current character and keep it back."""
        self._held.append(self.char)
        yield

    def pass_shown(self, kind: Kind) -> Reading[None]:
        """Move past the current character and show it."""
        self.show(kind, self.char)
        yield

    def show(self, kind: Kind, text: str) -> None:
        """Show a text, with nothing held before it; neighbours whose kind is the same object become one piece."""
        if self._shown and self._shown[-1][0] is kind:
            self._shown[-1][1].append(text)
        else:
            self._shown.append((kind, [text]))

    def release(self, kind: Kind) -> None:
        """Show what is held."""
        if self._held:
            self.show(kind, self.held)
            self._held.clear()

    def drop(self) -> None:
        """Forget what is held."""
        self._held.clear()

    def pass_rest(self) -> Reading[None]:
        """Move past all that is still to come, without showing it."""
        while self.char:
            yield

    def spaces(self) -> Reading[None]:
        """Hold white space, if there is any."""
        while self.char in JSON_SPACES:
            yield from self.hold()

    def marker(self, markers: Iterable[str]) -> Reading[str]:
        """Hold one of `markers`, the longest that is there, and return it; "" if there is none.

        Even then the part that looked like one is held. None can begin inside that part: a marker has its first
        character only once, or is a fence.
        """
        read, candidates = "", list(markers)
        while self.char:
            longer = [marker for marker in candidates if marker.startswith(read + self.char)]
            if not longer:
                break
            read, candidates = read + self.char, longer
            yield from self.hold()
            if all(marker == read for marker in candidates):
                break
        return read if read in candidates else ""

    def value(self) -> Reading[str]:
        """Hold a JSON value and return its text, which is cut where the output is."""
        scan, parts = JsonScan(), list[str]()
        while self.char and scan.take(self.char):
            parts.append(self.char)
            yield from self.hold()
        return "".join(parts)

    def take_shown(self) -> list[Piece]:
        """Return what was shown since the last time."""
        pieces = []
        for kind, parts in self._shown:
            text = "".join(parts)
            match kind:
                case "content":
                    pieces.append(Piece(content=text))
                case "reasoning":
                    pieces.append(Piece(reasoning=text))
                case ToolCallDelta():
                    pieces.append(Piece(tool_call=replace(kind, arguments_json=text)))
        self._shown.clear()
        return pieces
