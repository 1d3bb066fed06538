"""Text of models, tools and documents for a terminal: without control sequences, in lines that end between words."""

from __future__ import annotations

import re
import unicodedata

# ECMA-48: control sequences (CSI), strings (OSC, DCS, SOS, PM, APC) with their terminator, and other escapes.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PIECE = re.compile(r"\n|[^\S\n]+|\S+")
_WIDE = ("W", "F")


def plain_text(text: str) -> str:
    """Return the text without terminal control sequences and control characters; newlines and tabs stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


def plain_json(text: str) -> str:
    """Return the same JSON with the control characters of its strings as escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}" if found[0] != "\r" else "", text)


class WordWrap:
    """Breaks a text that arrives in pieces into lines between words.

    A space gives way to the line break that stands for it; nothing else is added or lost. A word longer than a line
    is left whole. What may be the first part of a word is held until the rest is there, or `flush`.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._space = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """Return what can be written now."""
        pieces = _PIECE.findall(self._word + text)
        self._word = pieces.pop() if pieces and not pieces[-1].isspace() else ""
        return "".join(self._place(piece) for piece in pieces)

    def flush(self) -> str:
        """Return what was held; the next text continues the line."""
        word, self._word = self._word, ""
        written = self._place(word) if word else ""
        space, self._space = self._space, ""
        self._column += len(space)
        return written + space

    def _place(self, piece: str) -> str:
        if piece == "\n":
            ended, self._space, self._column = self._space + "\n", "", 0
            return ended
        if piece.isspace():
            self._space = self._space + piece
            return ""
        space, self._space = self._space, ""
        columns = _columns_of(piece)
        if self._column and space and self._column + len(space) + columns > self._width:
            self._column = columns
            return "\n" + piece
        self._column += len(space) + columns
        return space + piece


def _columns_of(word: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in _WIDE else 1 for character in word)
