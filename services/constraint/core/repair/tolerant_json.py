"""The second level of JSON repair: the json-repair library parses the text, and the text must support the result.

The library guesses, so its result is accepted only under two conditions. Every string, number and literal of the result
must occur in the text, possibly in another spelling (escapes, quotes, `None` for null). The result must also be of the
kind that the text starts with: an object for `{`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any

import json_repair

MAX_CHARS = 100_000
MAX_STEPS = 600_000  # limit on characters read, including repeated reads; about half a second
MAX_DEPTH = 200  # nesting of values; the library fails near this depth
MAX_STARTS = 20  # brackets in prose that are tried as the start of the document

_FENCE = re.compile(r"```[A-Za-z0-9_+-]*[ \t]*\r?\n?(.*?)(?:```|\Z)", re.DOTALL)
_BRACKET = re.compile(r"[{\[]")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_STRICT_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")
_CONTROL_ESCAPE = re.compile(r"\\[bfnrt]")
_SPELLING = re.compile(r"[\\\s\"'`\u00b4\u2018\u2019\u201c\u201d]+")
_EMPTY_TEXT = re.compile(r"\"\"|''|``|\u201c\u201d|\u2018\u2019")
_QUOTED = re.compile(r"\"([^\"\\]*)\"|'([^'\\]*)'")
_LITERALS = {
    None: re.compile(r"\b(?:null|none|undefined|nan)\b", re.IGNORECASE),
    True: re.compile(r"\btrue\b", re.IGNORECASE),
    False: re.compile(r"\bfalse\b", re.IGNORECASE),
}
# JavaScript and Python syntax that models write in place of JSON.
_REWRITINGS = (
    ("ellipsis removed", re.compile(r"(?<=[,\[{])\s*\.\.\.\s*+,?\s*(?=[^\s.])"), ""),
    ("constructor removed", re.compile(r"([:,\[]\s*)[A-Za-z_]\w*\(\s*(\"[^\"\\]*\"|'[^'\\]*'|[-0-9.]+)\s*\)"), r"\1\2"),
    ("literal written as null", re.compile(r"(?<=[:,\[])(\s*)(?:undefined|NaN)(?=\s*[,}\]])"), r"\1null"),
    ("missing quote added", re.compile(r"(:\s*\"[^\"]*),(?=\"\w+\"\s*:)"), r'\1",'),
    ("missing quote added", re.compile(r"(?m)^(\s*\"[^\"\n]*),[ \t]*(?=\n\s*\")"), r'\1",'),
    ("missing comma added", re.compile(r"(?<=[}\]])\s*(?=[{\[])"), ", "),
    (
        "missing colon added",
        re.compile(
            r"(\{\s*(?:\"[^\"\\]*\"|'[^'\\]*'|\u201c[^\u201c\u201d]*\u201d|[A-Za-z_]\w*))\s+"
            r"(?=[\"'\u201c\d{\[]|-\d|(?:true|false|null)\b)"
        ),
        r"\1: ",
    ),
)
_JSON_LIKE = re.compile(r"[\"':\d]")
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_WORD = re.compile(r"\w")
_BRACES = frozenset("{}")
_PATH = re.compile(r"(?<=[\"'])[A-Za-z]:(?:\\(?!\\)[^\"'\\\n]*)+(?=[\"'])")
_CALL = re.compile(r"\s*[A-Za-z_$][\w$.]*\s*\((.*)\)\s*+;?\s*\Z", re.DOTALL)
_ESCAPED = re.compile(r"[^\"]*\\\"")


def parse_tolerant(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return a JSON document built from the text, and the repairs in order; None if no repair succeeds."""
    if len(text) > MAX_CHARS:
        return None
    evidence, steps = _Evidence(text), _Steps()
    for candidate, repairs in _candidates(text):
        try:
            value = _read(candidate, steps)
        except _OutOfStepsError:
            break
        if value is not _NOTHING and evidence.covers(value):
            return _write(value, evidence.number_texts), tuple(dict.fromkeys([*repairs, "read as nearly JSON"]))
    return None


class _OutOfStepsError(Exception):
    """The library would take too long: its running time is quadratic on some texts."""


class _Steps:
    """Counts the characters that the library may still read."""

    def __init__(self) -> None:
        self.left = MAX_STEPS


class _CountedText(str):
    """A text that counts each read of a part of it."""

    __slots__ = ("steps",)
    steps: _Steps

    @classmethod
    def of(cls, text: str, steps: _Steps) -> _CountedText:
        counted = cls(text)
        counted.steps = steps
        return counted

    def __getitem__(self, key: Any) -> str:
        self.steps.left -= 1
        if self.steps.left < 0:
            raise _OutOfStepsError
        return str.__getitem__(self, key)


def _candidates(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield candidate documents with the repairs that lead to them, the likeliest first."""
    bare = text.strip().lstrip("\ufeff")
    fences = _FENCE.findall(text)
    if len(fences) == 1 and not bare.startswith(("{", "[")):
        yield from _spellings(fences[0].strip(), ["code fence removed"])
    if len(fences) <= 1 and (segment := _object_in_prose(bare)):
        yield segment, ["text around the JSON removed"]
    if call := _CALL.match(bare):
        yield from _spellings(call[1], ["call removed"])
    if _BRACKET.search(bare):
        yield from _bracketed(bare)
    else:
        yield from _spellings(bare, [])


def _bracketed(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the text starting at each of its first MAX_STARTS brackets."""
    for bracket in islice(_BRACKET.finditer(text), MAX_STARTS):
        document = text[bracket.start() :]
        if not _COMMENT.sub("", text[: bracket.start()]).strip():
            yield from _spellings(document, [])
        elif _JSON_LIKE.search(document):  # a bracket in prose does not start JSON
            yield from _spellings(document, ["text before the JSON removed"])


def _spellings(text: str, repairs: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the text rewritten as JSON, followed by the text as it is."""
    rewritten, done = text, list(repairs)
    if _ESCAPED.match(text):
        rewritten, done = text.replace('\\"', '"').replace("\\\\", "\\"), [*done, "escapes of quotes removed"]
    if (changed := _PATH.sub(_double_backslashes, rewritten)) != rewritten:
        rewritten, done = changed, [*done, "backslashes of a path escaped"]
    for name, pattern, replacement in _REWRITINGS:
        changed = pattern.sub(replacement, rewritten)
        if changed != rewritten:
            rewritten, done = changed, [*done, name]
    if rewritten != text:
        yield rewritten, done
    yield text, repairs


def _double_backslashes(path: re.Match[str]) -> str:
    return path.group().replace("\\", "\\\\")


def _object_in_prose(text: str) -> str:
    """Return the single object in prose, or an empty string if it is not strict JSON or not the only object."""
    start = text.find("{")
    if start < 0:
        return ""
    try:
        _, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return ""
    before, after = text[:start], text[end:]
    is_balanced = all(part.count("[") == part.count("]") for part in (before, after))
    has_words = _WORD.search(_IN_BRACKETS.sub("", f"{before} {after}"))
    if not is_balanced or not has_words or not _BRACES.isdisjoint(after):
        return ""
    return text[start:end]


def _refuse(name: str) -> Any:
    raise ValueError(name)


_STRICT = json.JSONDecoder(parse_constant=_refuse)
_NOTHING = object()


def _read(text: str, steps: _Steps) -> Any:
    """Return the library's value for the text, or _NOTHING if there is no value of the expected kind."""
    if not text.startswith(("{", "[")):
        return _read_scalar(text.rstrip(", ;"), steps)
    value = _ask(text, steps)
    if not _is_container(value):
        return _NOTHING
    if text[0] == "{" and isinstance(value, list) and not _is_several_documents(value):
        return _NOTHING
    return value


def _is_several_documents(value: list[Any]) -> bool:
    """Return whether the library read several documents and returned them as a list."""
    return bool(value) and all(map(_is_container, value))


def _read_scalar(text: str, steps: _Steps) -> Any:
    """Read a text that is only a number, a literal or a quoted string. Bare words are not JSON."""
    is_quoted = _is_quoted(text)
    if not (is_quoted or _NUMBER.fullmatch(text) or text in _WORDS):
        return _NOTHING
    value = _ask(f"[{text}]", steps)
    if isinstance(value, list) and len(value) == 1 and not _is_container(value[0]):
        return value[0]
    if is_quoted:
        return text[1:-1]
    return _NOTHING


def _is_quoted(text: str) -> bool:
    """Return whether the text is one string. One inner quote is allowed; two quotes mean words between strings."""
    closing = _CLOSING.get(text[:1])
    inner = text[1:-1].replace(f"\\{closing}", "")
    return len(text) > 1 and text[-1] == closing and inner.count(closing) <= 1


def _ask(text: str, steps: _Steps) -> Any:
    try:
        return json_repair.repair_json(_CountedText.of(text, steps), return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError):
        return _NOTHING


_CLOSING = {'"': '"', "'": "'", "\u2018": "\u2019", "\u201c": "\u201d"}
_WORDS = {"true", "false", "null", "True", "False", "None", "TRUE", "FALSE", "NULL", "undefined", "NaN"}


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


class _Evidence:
    """The strings, numbers and literals of a text, used to check a value."""

    def __init__(self, text: str) -> None:
        self.text = text
        # The original text of each fraction is kept to avoid rounding.
        self.number_texts = {float(number): number for number in _NUMBER.findall(text) if _STRICT_NUMBER.match(number)}
        self.quoted = {quoted for pair in _QUOTED.findall(text) for quoted in pair}
        self.numbers = {_decimal_of(number) for number in _NUMBER.findall(text)}
        self.fractions = {float(number) for number in self.numbers if number is not None}
        decoded = _UNICODE_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
        self.plain = (_plain(text), _plain(decoded), _plain(_CONTROL_ESCAPE.sub("", decoded)))

    def covers(self, value: Any) -> bool:
        """Return whether every scalar of the value occurs in the text."""
        waiting = [(value, 0)]
        while waiting:
            item, depth = waiting.pop()
            if depth > MAX_DEPTH:
                return False
            if isinstance(item, dict):
                waiting += [(part, depth + 1) for pair in item.items() for part in pair]
            elif isinstance(item, list):
                waiting += [(part, depth + 1) for part in item]
            elif not self.has(item):
                return False
        return True

    def has(self, scalar: Any) -> bool:
        if isinstance(scalar, str):
            return self.has_text(scalar)
        if scalar is None or isinstance(scalar, bool):
            return bool(_LITERALS[scalar].search(self.text))
        if isinstance(scalar, float):
            return scalar in self.fractions
        return scalar in self.numbers

    def has_text(self, text: str) -> bool:
        if not text:
            return bool(_EMPTY_TEXT.search(self.text))
        return text in self.quoted or text in self.text or any(_plain(text) in plain for plain in self.plain)


def _plain(text: str) -> str:
    """Return the text without the characters that differ between spellings."""
    return _SPELLING.sub("", text)


def _decimal_of(number: str) -> Decimal | None:
    try:
        return Decimal(number)
    except InvalidOperation:  # the exponent is too large
        return None


def _write(value: Any, numbers: dict[float, str]) -> str:
    if isinstance(value, dict):
        members = [f"{_write(str(key), numbers)}: {_write(item, numbers)}" for key, item in value.items()]
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_write(item, numbers) for item in value)}]"
    if isinstance(value, float):
        return numbers.get(value) or json.dumps(value)
    is_half = isinstance(value, str) and _HALF_PAIR.search(value)  # stays escaped, because UTF-8 cannot encode it
    return json.dumps(value, ensure_ascii=bool(is_half))
