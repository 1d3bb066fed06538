"""Prepares text from models, tools and documents for a terminal: drops control sequences, and wraps between words."""

from __future__ import annotations

import re
import unicodedata

from pagantic_common.domain.text.normalization import INVISIBLE

# ECMA-48: control sequences (CSI), strings (OSC, DCS, SOS, PM, APC) with their terminator, and other escapes.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNSEEN = re.compile(r"[^\n\t\x20-\x7e]")
_PIECE = re.compile(r"\n|[^\S\n]+|\S+")
_WIDE = ("W", "F")
_SPACE, _DELETE, _PICTURES = 0x20, 0x7F, 0x2400
# Scripts and emoji need joiners and U+FE0F. Some signs, for example around Arabic and Syriac numbers, are visible.
_KEPT = "\u200c\u200d\ufe0f\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2"
# Control characters except tab and line feed, line separators, lone surrogates, and invisible characters, such as
# direction overrides and characters that can hide entire passages of text.
_STEERING = re.compile(f"{_CONTROL.pattern}|[\u2028\u2029\ud800-\udfff]|(?![{_KEPT}]){INVISIBLE.pattern}")


def plain_text(text: str) -> str:
    """Return the text without terminal control sequences and control characters, except newlines and tabs."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


def visible_text(text: str) -> str:
    """Return the text with a visible name for each character that a terminal would interpret instead of show.

    ESC becomes ␛, and U+202E becomes «U+202E». Newlines and tabs stay. Unlike `plain_text`, it drops nothing.
    """
    return _STEERING.sub(_name_steering, text.replace("\r\n", "\n"))


def _name_steering(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < _SPACE:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"«U+{code:04X}»"


def plain_json(text: str) -> str:
    """Return the same JSON with the invisible characters of its strings as escapes.

    Invisible characters are control characters, and characters that change the direction or the appearance of the
    surrounding text.
    """
    return _UNSEEN.sub(_escape_unseen, text.replace("\r", ""))


def _escape_unseen(match: re.Match[str]) -> str:
    if match[0].isprintable() and not INVISIBLE.match(match[0]):
        return match[0]
    units = match[0].encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class WordWrap:
    """Breaks a text that arrives in pieces into lines, between words.

    A line break replaces the space before a word; nothing else is added or lost. A word longer than a line stays whole.
    A word is held back until its end has arrived, or until `flush`.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._space = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """Add a piece, and return the text that can be written now."""
        pieces = _PIECE.findall(self._word + text)
        self._word = ""
        if pieces and not pieces[-1].isspace():
            self._word = pieces.pop()
        return "".join(self._place(piece) for piece in pieces)

    def flush(self) -> str:
        """Return the pending text. The next piece continues the same line."""
        written = ""
        if self._word:
            written = self._place(self._word)
        written += self._space
        self._column += len(self._space)
        self._word = self._space = ""
        return written

    def _place(self, piece: str) -> str:
        if piece == "\n":
            ended = self._space + "\n"
            self._space = ""
            self._column = 0
            return ended
        if piece.isspace():
            self._space = self._space + piece
            return ""
        space = self._space
        self._space = ""
        columns = _columns_of(piece)
        if self._column and space and self._column + len(space) + columns > self._width:
            self._column = columns
            return "\n" + piece
        self._column += len(space) + columns
        return space + piece


def _columns_of(word: str) -> int:
    return len(word) + sum(unicodedata.east_asian_width(character) in _WIDE for character in word)
