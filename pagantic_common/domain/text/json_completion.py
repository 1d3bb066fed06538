"""Completes JSON that was truncated at any position.

`safe` is the length of the longest prefix that becomes a document when its open containers are closed. It grows with
each opened container and each complete value. At the end of the text, an open string, number or literal is completed. A
key without a value and a trailing comma are dropped by cutting the text back to `safe`. The module makes a single pass,
without recursion.
"""

from __future__ import annotations

import re
from typing import Any

from pagantic_common.domain.text.json_text import JsonTextError, parse_json

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_CHARS = re.compile(r"[-+0-9.eE]+")
_CUT_NUMBER = re.compile(r"(?:\.|[eE][+-]?)?\Z")  # the end of a truncated number
_WORD = re.compile(r"[a-z]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_BODY = re.compile(r'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HIGH_SURROGATE = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_LITERALS = ("true", "false", "null")
_CLOSER_OF = {"{": "}", "[": "]"}


class _Cut(Exception):
    """Raised at the end of the text, with the part to keep and the repair made."""

    def __init__(self, kept: str, repair: str) -> None:
        super().__init__(repair)
        self.kept = kept
        self.repair = repair


def complete_json(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Complete a truncated document, and return the document and the repairs, in order.

    Returns None if the text is not a prefix of a document, or does not contain a value yet.
    """
    walk = _Walk(text)
    try:
        walk.run()
    except _Cut as cut:
        if not cut.kept:
            return None
        closers = "".join(reversed(walk.closers))
        repairs = (cut.repair, _describe_closing(len(closers)))
        return cut.kept + closers, tuple(repair for repair in repairs if repair)
    return None


def partial_json(text: str) -> Any:
    """Return the value of a truncated JSON text, to display an answer while it streams.

    A truncated string, number or literal keeps the part that has arrived. Returns None if there is no value yet, or if
    the text is not JSON.
    """
    completed = complete_json(text.rstrip())
    if completed is not None:
        text, _ = completed
    try:
        return parse_json(text)
    except JsonTextError:
        return None


def _describe_closing(count: int) -> str:
    if count == 0:
        return ""
    if count == 1:
        return "closed 1 open container"
    return f"closed {count} open containers"


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of the match at `at`, or `at` if the pattern does not match there."""
    match = pattern.match(text, at)
    if match is None:
        return at
    return match.end()


class _Walk:
    """Reads the text strictly. Raises _Cut at the end of the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.safe = 0
        self.closers: list[str] = []

    def run(self) -> None:
        """Read the document. If the text is invalid before its end, the method returns."""
        is_comma_due = False
        while True:
            self.skip_space()
            char = self.peek("")
            if self.read_closer(char):
                is_comma_due = True
                continue
            if is_comma_due and not self.read_comma(char):
                return
            if self.is_in_object() and not self.read_key():
                return
            opened = self.read_value()
            if opened is None:
                return
            is_comma_due = not opened

    def is_in_object(self) -> bool:
        return bool(self.closers) and self.closers[-1] == "}"

    def read_closer(self, char: str) -> bool:
        """Read the end of the innermost container. Returns False if `char` does not end it."""
        if not self.closers or char != self.closers[-1]:
            return False
        self.closers.pop()
        self.at += 1
        self.safe = self.at
        return True

    def read_comma(self, char: str) -> bool:
        """Read a comma and the space after it. Returns False if there is no comma, or if the document has ended."""
        if not self.closers or char != ",":
            return False
        self.at += 1
        self.skip_space()
        self.peek("trailing comma dropped")
        return True

    def peek(self, repair: str) -> str:
        if self.at >= len(self.text):
            raise _Cut(self.text[: self.safe], repair)
        return self.text[self.at]

    def skip_space(self) -> None:
        self.at = _match_end(_SPACE, self.text, self.at)

    def read_key(self) -> bool:
        if self.peek("trailing comma dropped") != '"' or not self.read_string(is_key=True):
            return False
        self.skip_space()
        if self.peek("key without value dropped") != ":":
            return False
        self.at += 1
        self.skip_space()
        self.peek("key without value dropped")
        return True

    def read_value(self) -> bool | None:
        """Read a scalar or the opening of a container.

        Returns False for a scalar, True for a container, and None for anything else.
        """
        char = self.text[self.at]
        if char in _CLOSER_OF:
            self.closers.append(_CLOSER_OF[char])
            self.at += 1
            self.safe = self.at
            return True
        if char == '"':
            done = self.read_string(is_key=False)
        elif char in "-0123456789":
            done = self.read_number()
        else:
            done = self.read_literal()
        if not done:
            return None
        self.safe = self.at
        return False

    def read_string(self, *, is_key: bool) -> bool:
        end = _match_end(_STRING_BODY, self.text, self.at + 1)
        if self.text[end : end + 1] == '"':
            self.at = end + 1
            return True
        rest = self.text[end:]
        if rest and not _CUT_ESCAPE.match(rest):
            return False
        if is_key:
            raise _Cut(self.text[: self.safe], "key without value dropped")
        kept = _HIGH_SURROGATE.sub(r"\1", self.text[:end])
        if rest or len(kept) < end:
            raise _Cut(kept + '"', "closed an open string, its cut escape dropped")
        raise _Cut(kept + '"', "closed an open string")

    def read_number(self) -> bool:
        end = _match_end(_NUMBER_CHARS, self.text, self.at)
        number = NUMBER.match(self.text, self.at)
        if end == len(self.text):
            return self.cut_number(number)
        if number is None or number.end() != end:
            return False
        self.at = end
        return True

    def cut_number(self, number: re.Match[str] | None) -> bool:
        """Keep as much as possible of the number at the end of the text. Returns False if it is not a number."""
        if number is None:
            raise _Cut(self.text[: self.safe], "cut number dropped")
        if not _CUT_NUMBER.match(self.text, number.end()):
            return False
        if number.end() < len(self.text):
            raise _Cut(self.text[: number.end()], "cut number completed")
        raise _Cut(self.text, "")

    def read_literal(self) -> bool:
        word = _WORD.match(self.text, self.at)
        if word is None:
            return False
        for literal in _LITERALS:
            if word.group() == literal:
                self.at = word.end()
                return True
            if word.end() == len(self.text) and literal.startswith(word.group()):
                raise _Cut(self.text[: self.at] + literal, f"cut literal completed to {literal}")
        return False
