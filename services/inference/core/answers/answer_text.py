"""Holds back an answer's text as it arrives, or shows it as content, reasoning or calls. Knows no call formats."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from services.inference.core.generation import ToolCallDelta

JSON_SPACES = frozenset(" \t\r\n")
_OPENING, _CLOSING = frozenset("{["), frozenset("}]")
_AFTER_SCALAR = JSON_SPACES | frozenset(",:")
T = TypeVar("T")
Reading = Generator[None, None, T]
"""A rule in progress: it pauses until the next character arrives, and returns its result."""


class JsonScan:
    """Follows a JSON value by tracking strings, escapes and depth, with constant work per character.

    The scan counts brackets without pairing them; a JSON parser checks the text afterwards.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "is_complete")

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_complete = False

    def take(self, char: str) -> bool:
        """Read the next character and return whether it belongs to the value. Returns False once the value is complete.

        A string, an object or an array is complete with its last character. Any other value is complete when the next
        character arrives.
        """
        if self.is_complete:
            return False
        if self._is_in_string:
            self._take_in_string(char)
        elif char == '"':
            self._is_in_string = True
        elif char in _OPENING:
            self._depth += 1
        elif self._depth == 0 and (char in _AFTER_SCALAR or char in _CLOSING):
            self.is_complete = True
            return False
        elif char in _CLOSING:
            self._depth -= 1
            self.is_complete = self._depth == 0
        return True

    def _take_in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_in_string = False
            self.is_complete = self._depth == 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of an answer: content, reasoning, or a part of a tool call."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


Kind = Literal["content", "reasoning"] | ToolCallDelta


class AnswerText:
    """The arriving characters of an answer.

    `char` is the current character, or an empty string at the end of the output. A rule reads `char`. It then moves
    past the character with `hold` while its kind is undecided, or with `pass_shown`. `release` shows the held text, and
    `drop` discards held markup.
    """

    def __init__(self) -> None:
        self.char = ""
        self._held: list[str] = []
        self._shown: list[tuple[Kind, list[str]]] = []

    @property
    def held(self) -> str:
        """The held text, which is neither shown nor dropped yet."""
        return "".join(self._held)

    def hold(self) -> Reading[None]:
        """Move past the current character and hold it."""
        self._held.append(self.char)
        yield

    def pass_shown(self, kind: Kind) -> Reading[None]:
        """Move past the current character and show it, without a call of `show` for each character."""
        if self._shown and self._shown[-1][0] is kind:
            self._shown[-1][1].append(self.char)
        else:
            self._shown.append((kind, [self.char]))
        yield

    def show(self, kind: Kind, text: str) -> None:
        """Show text while nothing is held. Consecutive texts with the same kind object become one piece."""
        if self._shown and self._shown[-1][0] is kind:
            self._shown[-1][1].append(text)
        else:
            self._shown.append((kind, [text]))

    def release(self, kind: Kind) -> None:
        """Show the held text."""
        if self._held:
            self.show(kind, self.held)
            self._held.clear()

    def drop(self) -> None:
        """Discard the held text."""
        self._held.clear()

    def pass_rest(self) -> Reading[None]:
        """Move past the rest of the output without showing it."""
        while self.char:
            yield

    def spaces(self) -> Reading[None]:
        """Hold white space, if there is any."""
        while self.char in JSON_SPACES:
            yield from self.hold()

    def marker(self, markers: Iterable[str]) -> Reading[str]:
        """Hold the longest of `markers` at this position and return it, or an empty string if there is no marker.

        A partial marker is also held. No other marker can begin inside a marker, because the first character of a
        marker does not occur in it again, except in a fence.
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
        if read not in candidates:
            return ""
        return read

    def value(self) -> Reading[str]:
        """Hold a JSON value and return its text. The end of the output may cut off the value."""
        scan, parts = JsonScan(), list[str]()
        while self.char and scan.take(self.char):
            parts.append(self.char)
            yield from self.hold()
        return "".join(parts)

    def take_shown(self) -> list[Piece]:
        """Return the pieces shown since the last call."""
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
