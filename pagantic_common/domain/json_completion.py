"""Completes JSON that was cut off, anywhere.

It keeps `safe`, the length of the prefix after which appending the open closers gives a document: it grows with every
opened container and every complete value. At the end of the text what is open is completed, or the text is cut back to
`safe`, which drops a key without value and a trailing comma. One pass, without recursion.
"""

from __future__ import annotations

import re
from typing import Any

from pagantic_common.domain.json_text import JsonTextError, parse_json

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_CHARS = re.compile(r"[-+0-9.eE]+")
_CUT_NUMBER = re.compile(r"(?:\.|[eE][+-]?)?\Z")  # the end of a number that was cut
_WORD = re.compile(r"[a-z]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_BODY = re.compile(r'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HIGH_SURROGATE = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_LITERALS = ("true", "false", "null")
_CLOSER_OF = {"{": "}", "[": "]"}


class _Cut(Exception):
    """The text ends here; what is kept of it, and what was done."""

    def __init__(self, kept: str, repair: str) -> None:
        super().__init__(repair)
        self.kept = kept
        self.repair = repair


def complete_json(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Complete a beginning of a document, and say what was done, in order; None when the text is none.

    Nothing is None too: it has no value yet.
    """
    walk = _Walk(text)
    try:
        walk.run()
    except _Cut as cut:
        repairs = [cut.repair] if cut.repair else []
        if not cut.kept:
            return None
        closers = "".join(reversed(walk.closers))
        if closers:
            repairs.append(f"closed {len(closers)} open {'container' if len(closers) == 1 else 'containers'}")
        return cut.kept + closers, tuple(repairs)
    return None


def partial_json(text: str) -> Any:
    """Return the value that a beginning of a JSON text has so far: for showing an answer while it streams.

    A string, number or literal that is cut counts as far as it goes. None where there is no value, or none of JSON.
    """
    completed = complete_json(text.rstrip())
    try:
        return parse_json(text if completed is None else completed[0])
    except JsonTextError:
        return None


class _Walk:
    """A strict reading of the text up to its end; raises _Cut there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.safe = 0
        self.closers: list[str] = []

    def run(self) -> None:
        """Read the document; returns when the text is wrong before its end."""
        is_comma_due = False
        while True:
            self.skip_space()
            char = self.peek("")
            if self.closers and char == self.closers[-1]:
                self.closers.pop()
                self.at += 1
                self.safe = self.at
                is_comma_due = True
                continue
            if not self.closers and is_comma_due:
                return  # something after the document
            if is_comma_due:
                if char != ",":
                    return
                self.at += 1
                self.skip_space()
                self.peek("trailing comma dropped")
            if self.closers and self.closers[-1] == "}" and not self.read_key():
                return
            opened = self.read_value()
            if opened is None:
                return
            is_comma_due = not opened

    def peek(self, repair: str) -> str:
        if self.at >= len(self.text):
            raise _Cut(self.text[: self.safe], repair)
        return self.text[self.at]

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

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
        """Read a scalar (False) or a container's opening (True); None when there is neither."""
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
        body = _STRING_BODY.match(self.text, self.at + 1)
        end = body.end() if body else self.at + 1
        if self.text[end : end + 1] == '"':
            self.at = end + 1
            return True
        rest = self.text[end:]
        if rest and not _CUT_ESCAPE.match(rest):
            return False
        if is_key:
            raise _Cut(self.text[: self.safe], "key without value dropped")
        kept = _HIGH_SURROGATE.sub(r"\1", self.text[:end])
        escape = ", its cut escape dropped" if rest or len(kept) < end else ""
        raise _Cut(kept + '"', "closed an open string" + escape)

    def read_number(self) -> bool:
        chars = _NUMBER_CHARS.match(self.text, self.at)
        end = chars.end() if chars else self.at
        number = NUMBER.match(self.text, self.at)
        if end == len(self.text):
            if number is None:
                raise _Cut(self.text[: self.safe], "cut number dropped")
            if not _CUT_NUMBER.match(self.text, number.end()):
                return False
            raise _Cut(self.text[: number.end()], "cut number completed" if number.end() < end else "")
        if number is None or number.end() != end:
            return False
        self.at = end
        return True

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
