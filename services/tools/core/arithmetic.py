"""Arithmetic expressions, parsed and computed by recursive descent, bounded in length, depth and size of numbers.

Grammar: sum := product (("+" | "-") product)*; product := signed (("*" | "/" | "//" | "%") signed)*;
signed := ("+" | "-") signed | power; power := atom (("**" | "^") signed)?;
atom := number | constant | function "(" sum ("," sum)* ")" | "(" sum ")".
Integers are exact; everything else is a double. Floor division and remainder round down, as in Python.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Final

from services.tools.core.failure import ToolFailed

MAX_EXPRESSION_CHARS: Final = 1000
# The alphabet of expressions. Where a call is enforced in the decoder, this keeps a small model from writing prose.
_WORDS: Final = "sqrt|abs|round|min|max|floor|ceil|pi|e"
EXPRESSION_PATTERN: Final = rf"^(?:[-+(. 0-9]|{_WORDS})(?:(?:[-+*/%()., 0-9]|{_WORDS})*(?:[0-9) ]|pi|e))?$"
MAX_DEPTH: Final = 50
MAX_INTEGER_BITS: Final = 4096
MAX_ROUND_DIGITS: Final = 100
_EXACT_FLOAT: Final = 1e15  # whole doubles below this print without an exponent

Number = int | float

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op>\*\*|//|[-+*/%^(),]))"
)
_CONSTANTS: Final = {"pi": math.pi, "e": math.e}


def _floor(value: Number) -> int:
    return math.floor(value)


def _ceil(value: Number) -> int:
    return math.ceil(value)


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_ROUND_DIGITS:
        raise ToolFailed(f"round takes a whole number of digits between -{MAX_ROUND_DIGITS} and {MAX_ROUND_DIGITS}")
    return round(value, digits) if digits else round(value)


# Function, least and most arguments.
_FUNCTIONS: Final[dict[str, tuple[Callable[..., Number], int, int]]] = {
    "sqrt": (math.sqrt, 1, 1),
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "min": (lambda *values: min(values), 1, 100),
    "max": (lambda *values: max(values), 1, 100),
    "floor": (_floor, 1, 1),
    "ceil": (_ceil, 1, 1),
}


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        # |base| >= 2 gives at least `exponent` bits, so the check bounds the work before it is done.
        if abs(base) > 1 and (abs(base).bit_length() - 1) * exponent > MAX_INTEGER_BITS:
            raise ToolFailed(f"the power is too large: integers may have at most {MAX_INTEGER_BITS} bits")
        return int(base**exponent)
    result = base**exponent
    if isinstance(result, complex):
        raise ToolFailed("the power of a negative number with a fractional exponent is not real")
    return float(result) if isinstance(result, float) else int(result)


_SUMS: Final[dict[str, Callable[[Number, Number], Number]]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Final[dict[str, Callable[[Number, Number], Number]]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


class _Parser:
    """Computes while it parses; every value on the way is checked."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokenize(text)
        self._position = 0
        self._depth = 0

    def compute(self) -> Number:
        value = self._sum()
        if (token := self._peek()) is not None:
            raise ToolFailed(f"unexpected {token!r} in the expression: an operator or the end was expected")
        return value

    def _peek(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take(self) -> str:
        if (token := self._peek()) is None:
            raise ToolFailed("the expression ends too early")
        self._position += 1
        return token

    def _expect(self, wanted: str) -> None:
        if (token := self._take()) != wanted:
            raise ToolFailed(f"unexpected {token!r} in the expression: {wanted!r} was expected")

    def _sum(self) -> Number:
        return self._chain(_SUMS, self._product)

    def _product(self) -> Number:
        return self._chain(_PRODUCTS, self._signed)

    def _chain(self, operators: dict[str, Callable[[Number, Number], Number]], operand: Callable[[], Number]) -> Number:
        value = operand()
        while (token := self._peek()) in operators:
            self._position += 1
            value = _check(operators[token or ""](value, operand()))
        return value

    def _signed(self) -> Number:
        # Every nesting (parentheses, arguments, signs, exponents) passes through here.
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ToolFailed(f"the expression is nested deeper than {MAX_DEPTH} levels")
        if (token := self._peek()) in ("+", "-"):
            self._position += 1
            operand = self._signed()
            value = -operand if token == "-" else operand  # noqa: S105 - an operator
        else:
            value = self._power()
        self._depth -= 1
        return value

    def _power(self) -> Number:
        base = self._atom()
        if self._peek() in ("**", "^"):
            self._position += 1
            return _check(_power(base, self._signed()))
        return base

    def _atom(self) -> Number:
        token = self._take()
        if token == "(":  # noqa: S105 - an operator
            value = self._sum()
            self._expect(")")
            return value
        if token[0].isdigit() or token[0] == ".":
            return _check(int(token) if token.isdigit() else float(token))
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token in _FUNCTIONS:
            return self._call(token)
        if token[0].isalpha() or token[0] == "_":
            known = ", ".join([*_FUNCTIONS, *_CONSTANTS])
            raise ToolFailed(f"{token[:40]!r} is not known: the calculator knows {known}")
        raise ToolFailed(f"unexpected {token!r} in the expression: a number was expected")

    def _call(self, name: str) -> Number:
        function, least, most = _FUNCTIONS[name]
        self._expect("(")
        values = [self._sum()]
        while self._peek() == ",":
            self._position += 1
            values.append(self._sum())
        self._expect(")")
        if not least <= len(values) <= most:
            raise ToolFailed(f"{name} takes {least} to {most} arguments, not {len(values)}")
        try:
            return _check(function(*values))
        except ValueError:
            raise ToolFailed(f"{name} has no real result for that number") from None


def _tokenize(text: str) -> list[str]:
    tokens: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            bad = text[position:].lstrip()[0]
            raise ToolFailed(
                f"unexpected character {bad!r} in the expression: only numbers, + - * / // % ** ( ) , work"
            )
        tokens.append(match.group(match.lastgroup or 0))
        position = match.end()
    return tokens


def _check(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise ToolFailed(f"a number is too large: integers may have at most {MAX_INTEGER_BITS} bits")
    elif not math.isfinite(value):
        raise ToolFailed("a number is too large for a double (about 1.8e308)")
    return value


def evaluate(expression: str) -> Number:
    """Compute an expression; raises ToolFailed, saying what is wrong with it."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolFailed(f"the expression has {len(expression)} characters, at most {MAX_EXPRESSION_CHARS} are allowed")
    try:
        return _Parser(expression).compute()
    except ZeroDivisionError:
        raise ToolFailed("division by zero") from None
    except OverflowError:
        raise ToolFailed("a number is too large for a double (about 1.8e308)") from None


def format_number(value: Number) -> str:
    """Write integers exactly, doubles with up to 15 significant digits, whole doubles without a point."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT_FLOAT else format(value, ".15g")
    return str(value)
