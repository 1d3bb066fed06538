"""A forgiving reader of JSON: fences, text around, comments, quotes, bare keys, Python literals, commas, closers.

It writes the document anew while it reads, number text as it was, with an explicit stack, so depth costs no frames.
"""

from __future__ import annotations

import json
import re

MAX_STARTS = 20  # brackets in prose that are tried as the document's start

_FENCE = re.compile(r"```[A-Za-z0-9_+-]*[ \t]*\r?\n?(.*?)(?:```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_STRICT_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_WORD = re.compile(r"[A-Za-z_$][\w$-]*")
_BLANK = re.compile(r"[\s\ufeff]+")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_START = re.compile(r"[{\[]")
_PLAIN = re.compile(r"[^\"'\\\x00-\x1f\u201d\u2019]+")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_CLOSER_OF = {"{": "}", "[": "]"}
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019"}
_LITERALS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "TRUE": "true",
    "FALSE": "false",
    "NULL": "null",
    "undefined": "null",
    "NaN": "null",
    "nan": "null",
}


def parse_tolerant(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return a JSON document found in the text and what was forgiven, in order; None when there is none."""
    if (fenced := _FENCE.search(text)) and not text.lstrip().startswith(("{", "[")):
        found = _search(fenced.group(1), ["code fence removed"])
        if found:
            return found
    return _search(text, [])


def _search(text: str, repairs: list[str]) -> tuple[str, tuple[str, ...]] | None:
    for number, start in enumerate(_START.finditer(text)):
        if number == MAX_STARTS:
            break
        before = text[: start.start()]
        reader = _Reader(text, start.start())
        if reader.read():
            around = ["text before the JSON removed"] if _COMMENT.sub("", before).strip() else []
            if _COMMENT.sub("", text[reader.at :]).strip():
                reader.note("text after the JSON removed")
            return "".join(reader.out), tuple(dict.fromkeys([*repairs, *around, *reader.repairs]))
    bare = text.strip()
    reader = _Reader(bare, 0)
    if bare and reader.read_scalar() and reader.at == len(bare):
        return "".join(reader.out), tuple(dict.fromkeys([*repairs, *reader.repairs]))
    return None


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.out: list[str] = []
        self.repairs: list[str] = []
        self.stack: list[str] = []  # closers
        self.open_count = {"}": 0, "]": 0}  # of each in the stack
        self.is_first = True  # no member of the innermost container has been written

    def note(self, repair: str) -> None:
        if repair not in self.repairs:
            self.repairs.append(repair)

    def skip_blank(self) -> None:
        while True:
            if blank := _BLANK.match(self.text, self.at):
                self.at = blank.end()
            if comment := _COMMENT.match(self.text, self.at):
                self.at = comment.end()
                self.note("comment removed")
            elif not blank:
                return

    def read(self) -> bool:
        """Read the container that starts here; False when it cannot be understood. Stops after its end."""
        self.open()
        while self.stack:
            had_comma = self.skip_commas()
            char = self.text[self.at : self.at + 1]
            if not char:
                self.note("missing closers added")
                self.out.extend(reversed(self.stack))
                self.stack.clear()
            elif char in "}]":
                if not self.close(char):
                    return False
                if had_comma:
                    self.note("trailing comma removed")
            elif not self.read_member(had_comma=had_comma):
                return False
        return True

    def skip_commas(self) -> bool:
        """Skip blanks and commas; returns whether there was a comma."""
        commas = 0
        self.skip_blank()
        while self.text[self.at : self.at + 1] == ",":
            commas += 1
            self.at += 1
            self.skip_blank()
        if commas > 1 or (commas and self.is_first):
            self.note("extra comma removed")
        return bool(commas)

    def open(self) -> None:
        char = self.text[self.at]
        self.out.append(char)
        self.stack.append(_CLOSER_OF[char])
        self.open_count[_CLOSER_OF[char]] += 1
        self.is_first = True
        self.at += 1

    def close(self, char: str) -> bool:
        if not self.open_count[char]:
            return False
        while self.stack[-1] != char:
            self.note("missing closers added")
            self.out.append(self.pop())
        self.out.append(self.pop())
        self.is_first = False
        self.at += 1
        return True

    def pop(self) -> str:
        closer = self.stack.pop()
        self.open_count[closer] -= 1
        return closer

    def read_member(self, *, had_comma: bool) -> bool:
        mark = len(self.out)
        if not self.is_first:
            self.out.append(", ")
            if not had_comma:
                self.note("missing comma added")
        if self.stack[-1] == "}":
            state = self.read_key()
            if state is None:  # the text ends before the value
                del self.out[mark:]
                return True
            if not state:
                return False
        if self.text[self.at] in _CLOSER_OF:
            self.open()
            return True
        self.is_first = False
        return self.read_scalar()

    def read_key(self) -> bool | None:
        """Read a key and its colon; None when the text ends before the value."""
        if self.text[self.at] in _QUOTES:
            self.read_string()
        elif word := _WORD.match(self.text, self.at) or _NUMBER.match(self.text, self.at):
            self.note("key quoted")
            self.out.append(json.dumps(word.group(), ensure_ascii=False))
            self.at = word.end()
        else:
            return False
        self.skip_blank()
        char = self.text[self.at : self.at + 1]
        if char == ":":
            self.at += 1
            self.skip_blank()
            self.out.append(": ")
            char = self.text[self.at : self.at + 1]
            if char:
                return True
        if not char:
            self.note("key without value dropped")
            return None
        return False

    def read_scalar(self) -> bool:
        if self.text[self.at] in _QUOTES:
            self.read_string()
            return True
        if word := _WORD.match(self.text, self.at):
            return self.read_word(word.group())
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            self.out.append(self.write_number(number.group()))
            return True
        return False

    def read_word(self, word: str) -> bool:
        literal = _LITERALS.get(word)
        self.at += len(word)
        if literal is None and self.at == len(self.text):
            literal = next((value for name, value in _LITERALS.items() if name.startswith(word)), None)
        if literal is None:
            return False
        if word != literal:
            self.note(f"literal {word} written as {literal}")
        self.out.append(literal)
        return True

    def write_number(self, number: str) -> str:
        if _STRICT_NUMBER.match(number):
            return number
        self.note("number rewritten")
        sign = "-" if number.startswith("-") else ""
        whole, _, fraction = number.lstrip("+-").lower().partition("e")[0].partition(".")
        exponent = number.lower().partition("e")[2]
        text = sign + (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
        return text + (f"e{exponent}" if exponent else "")

    def read_string(self) -> None:
        """Read a string of either quotes and write it in double quotes; the end of the text closes it."""
        text, quote = self.text, self.text[self.at]
        closer = _QUOTES[quote]
        if quote != '"':
            self.note("quotes replaced")
        at = self.at + 1
        self.out.append('"')
        while at < len(text) and text[at] != closer:
            if plain := _PLAIN.match(text, at):
                self.out.append(plain.group())
                at = plain.end()
            elif text[at] == "\\":
                at = self.read_escape(at)
            else:  # another kind of quote, or a control character
                if text[at] < " ":
                    self.note("control character escaped")
                self.out.append(json.dumps(text[at], ensure_ascii=False)[1:-1])
                at += 1
        if at >= len(text):
            self.note("closed an open string")
        self.out.append('"')
        self.at = at + 1

    def read_escape(self, at: int) -> int:
        char = self.text[at + 1 : at + 2]
        if not char:
            return at + 1
        if char == "u":
            if _HEX4.match(self.text, at + 2):
                self.out.append(self.text[at : at + 6])
                return at + 6
            if len(self.text) < at + 6:
                return len(self.text)
        elif char in '"\\/bfnrt':
            self.out.append("\\" + char)
            return at + 2
        elif char == "'":
            self.out.append(char)
            return at + 2
        self.note("stray backslash escaped")
        self.out.append("\\\\")
        return at + 1
