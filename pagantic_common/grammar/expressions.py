"""CEL expressions: compiled with limits, and evaluated with a `size` that counts Unicode characters.

The library's `size` counts the bytes of a text and cannot be redefined. Calls of `size` are therefore renamed to call a
function of this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import cel

from pagantic_common.domain.chunks import MAX_EXPRESSION_CHARS

MAX_EXPRESSION_DEPTH = 100
MAX_STEPS = 20_000_000
_MAX_REASON_CHARS = 200
_CHARS_OF_A_MEMBER = 1000
_WORDS_OF_A_PATTERN = 500  # The library compiles a pattern again for each use.

_LOOP = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(\s*(\w+)\s*,")
_WORD = re.compile(r"\w+")
_LOOP_NAMES = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
STRING_OR_SIZE = re.compile(
    r"""//[^\n]*|(?<=[rR])(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"]*"|'[^']*')"""
    r"""|\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
    r"""|\bsize(?=\s*\()""",
    re.DOTALL,
)
_SYNTAX_ERROR = re.compile(
    r"<input>:(?P<line>\d+):(?P<column>\d+): Syntax error: (?P<what>.*?)(?: expecting .*)?$", re.MULTILINE
)
_UNEXPECTED = re.compile(r"(?:mismatched|extraneous) input '(?P<token>.*)'")
_UNDEFINED = re.compile(r"Undefined variable or function: ('[^']*')")


class ExpressionError(ValueError):
    """The text is not a CEL expression, or the expression has no result for the given variables."""


class Expression:
    """A compiled expression.

    Attributes:
        text: The expression in its original form.
        names: The variables that the expression reads, without the variables of its macros.
    """

    def __init__(self, text: str) -> None:
        """Compile the text. Raises ExpressionError if it is not CEL or is too large."""
        self.text = text
        self._program = _compile(text)
        self._cost = _Cost(text)
        self.names = frozenset({*self._program.variables()} - set(_LOOP.findall(text)))

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """Return the result. Raises ExpressionError if evaluation fails or may take too many steps."""
        self._cost.check(variables)
        size = _Size()
        try:
            result = self._program.execute(cel.Context(variables=dict(variables), functions={_SIZE: size}))
        except Exception as error:  # noqa: BLE001 - the library raises errors of many types
            raise ExpressionError(_reason_of(error)) from None
        if size.objection:
            raise ExpressionError(size.objection)
        return result


class _Cost:
    """A limit on the number of steps of an expression.

    The library holds the interpreter lock while it evaluates, and cannot be stopped. The estimate assumes that all
    loops are nested, and that every word reads the largest possible value. Each plus, and each comma outside of loops,
    can repeat a value, and a map creates a value for each member. Words in strings and comments count too, so that they
    cannot hide steps from the estimate.
    """

    def __init__(self, text: str) -> None:
        words = _WORD.findall(text)
        self._words = 1 + len(words) + _WORDS_OF_A_PATTERN * words.count("matches")
        self._loops = sum(word in _LOOP_NAMES for word in words)
        self._maps = words.count("map")
        self._repeats = 1 + text.count(",") + text.count("+") - len(_LOOP.findall(text))

    def check(self, variables: Mapping[str, Any]) -> None:
        """Raise ExpressionError if the expression may take too many steps for these variables."""
        members, longest = _measure(dict(variables))
        rounds = (1 + longest + self._repeats) ** (self._loops + self._maps)
        if self._words * self._repeats * members * rounds > MAX_STEPS:
            raise ExpressionError(
                f"an expression of {self._loops} loops over {members} members may take more than {MAX_STEPS} steps: "
                "write fewer loops, sums and lists, or read less"
            )


def first_line(error: object) -> str:
    """Return the first line of a message from the library, at most 200 characters."""
    text = str(error)
    if isinstance(error, Exception) and error.args and isinstance(error.args[0], bytes):
        text = error.args[0].decode(errors="replace")
    return text.strip().split("\n", 1)[0][:_MAX_REASON_CHARS]


def _compile(expression: str) -> Any:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ExpressionError(
            f"the expression has {len(expression)} characters, at most {MAX_EXPRESSION_CHARS} are taken"
        )
    if max(map(expression.count, "([{!-?")) > MAX_EXPRESSION_DEPTH:
        raise ExpressionError(f"the expression has more than {MAX_EXPRESSION_DEPTH} brackets or operators of a kind")
    try:
        return cel.compile(STRING_OR_SIZE.sub(_rename_size, expression))
    except Exception:  # noqa: BLE001 - the library raises errors of many types
        raise ExpressionError(f"the expression does not compile: {_syntax_error_of(expression)}") from None


def _syntax_error_of(expression: str) -> str:
    """Describe a syntax error with its position in the caller's expression."""
    try:
        cel.compile(expression)
    except Exception as error:  # noqa: BLE001 - as above
        message = str(error)
    else:
        return "it is not CEL"
    match = _SYNTAX_ERROR.search(message)
    if match is None:
        return first_line(message)
    what = match["what"]
    if unexpected := _UNEXPECTED.match(what):
        what = f"unexpected {unexpected['token']!r}"
    what = what.replace("unexpected '<EOF>'", "the expression ends too early").replace("'<EOF>'", "the end")
    described = f"column {match['column']}: {what[:_MAX_REASON_CHARS]}"
    if match["line"] != "1":
        described = f"line {match['line']} {described}"
    return described


def _reason_of(error: Exception) -> str:
    """Return the reason why an expression has no result, in plain words."""
    message = first_line(error)
    if isinstance(error, KeyError):
        return f"there is no field {message}"
    if undefined := _UNDEFINED.match(message):
        return f"there is no function {undefined[1]} for these values"
    first_sentence = message.split(". ", 1)[0].removesuffix(".")
    return first_sentence[:1].lower() + first_sentence[1:]


_SIZE = "unicode_size"
_KINDS = {
    bool: "a truth value",
    int: "a number",
    float: "a number",
    type(None): "null",
    str: "a text",
    list: "a list",
    dict: "a map",
}


class _Size:
    """Counts the characters of a text, and the members of a list or map.

    It stores its error instead of raising it, because the library writes raised errors to stderr.
    """

    def __init__(self) -> None:
        self.objection = ""

    def __call__(self, value: Any) -> int:
        if isinstance(value, str | bytes | list | dict):
            return len(value)
        self.objection = f"size() takes a text, a list or a map, not {kind_of(value)}"
        return 0


def kind_of(value: Any) -> str:
    """Return a readable name for the kind of an expression's value."""
    return _KINDS.get(type(value), "such a value")


def _rename_size(match: re.Match[str]) -> str:
    if match.group() == "size":
        return _SIZE
    return match.group()


def as_doubles(value: Any) -> Any:
    """Return a JSON value with every number converted to a double."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [as_doubles(item) for item in value]
    if isinstance(value, dict):
        return {key: as_doubles(item) for key, item in value.items()}
    try:
        return float(value)
    except OverflowError:
        if value > 0:
            return float("inf")
        return float("-inf")


def _measure(value: Any) -> tuple[int, int]:
    """Return the number of members of a value, and the length of its longest list.

    A long text counts as several members.
    """
    if isinstance(value, str):
        return 1 + len(value) // _CHARS_OF_A_MEMBER, 0
    if not isinstance(value, list | dict):
        return 1, 0
    items = value.values() if isinstance(value, dict) else value
    measured = [_measure(item) for item in items]
    members = 1 + sum(count for count, _ in measured)
    if isinstance(value, dict):
        members += sum(map(len, value)) // _CHARS_OF_A_MEMBER
    return members, max([len(value), *(longest for _, longest in measured)])
