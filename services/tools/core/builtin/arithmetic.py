"""Computes arithmetic expressions, with limits on their length, their depth and the size of numbers.

Python's parser reads an expression only after a check that it contains nothing but numbers, operators, parentheses,
commas and known names. `^` means `**`. Integers are exact, and other numbers are doubles. Floor division and remainder
round down, as in Python.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Final

from pagantic_common.domain.messages import ToolFailed

MAX_EXPRESSION_CHARS: Final = 1000
# The alphabet of expressions. It keeps small models from writing prose in enforced calls.
_WORDS: Final = "sqrt|abs|round|min|max|floor|ceil|pi|e"
EXPRESSION_PATTERN: Final = rf"^(?:[-+(. 0-9]|{_WORDS})(?:(?:[-+*/%()., 0-9]|{_WORDS})*(?:[0-9) ]|pi|e))?$"
MAX_DEPTH: Final = 50
MAX_INTEGER_BITS: Final = 4096
MAX_ROUND_DIGITS: Final = 100
_EXACT_FLOAT: Final = 1e15  # whole doubles below this are printed without an exponent

Number = int | float

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op>\*\*|//|[-+*/%^(),]))"
)
_SPELLINGS: Final = {"^": "**"}
_CONSTANTS: Final = {"pi": math.pi, "e": math.e}


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_ROUND_DIGITS:
        raise ToolFailed(f"round takes a whole number of digits between -{MAX_ROUND_DIGITS} and {MAX_ROUND_DIGITS}")
    if not digits:
        return round(value)
    return round(value, digits)


# Each function by name, with the minimum and maximum number of its arguments.
_FUNCTIONS: Final[dict[str, tuple[Callable[..., Number], int, int]]] = {
    "sqrt": (math.sqrt, 1, 1),
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "min": (lambda *values: min(values), 1, 100),
    "max": (lambda *values: max(values), 1, 100),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
}


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        # A base of n bits yields at least (n - 1) * exponent bits, so the size is checked before the computation.
        if abs(base) > 1 and (abs(base).bit_length() - 1) * exponent > MAX_INTEGER_BITS:
            raise ToolFailed(f"the power is too large: integers may have at most {MAX_INTEGER_BITS} bits")
        return int(base**exponent)
    result = base**exponent
    if isinstance(result, complex):
        raise ToolFailed("the power of a negative number with a fractional exponent is not real")
    return _check(result)


_OPERATORS: Final[dict[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


def evaluate(expression: str) -> Number:
    """Compute an expression. Raises ToolFailed with the reason."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolFailed(f"the expression has {len(expression)} characters, at most {MAX_EXPRESSION_CHARS} are allowed")
    tokens = _tokenize(expression)
    _check_tokens(tokens)
    try:
        return _compute(_parse(" ".join(tokens)))
    except ZeroDivisionError:
        raise ToolFailed("division by zero") from None
    except OverflowError:
        raise ToolFailed("a number is too large for a double (about 1.8e308)") from None


def _tokenize(text: str) -> list[str]:
    """Split an expression into tokens, and convert them to Python's spelling."""
    tokens: list[str] = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            bad = text[position:].lstrip()[0]
            raise ToolFailed(
                f"unexpected character {bad!r} in the expression: only numbers, + - * / // % ** ( ) , work"
            )
        token = match.group(match.lastgroup or 0)
        if token.isdigit():
            token = str(int(token))  # removes leading zeros
        tokens.append(_SPELLINGS.get(token, token))
        position = match.end()
    return tokens


def _check_tokens(tokens: Sequence[str]) -> None:
    """Reject unknown names, and parentheses that are nested too deeply for the parser."""
    depth = 0
    for token in tokens:
        if (token[0].isalpha() or token[0] == "_") and token not in _CONSTANTS and token not in _FUNCTIONS:
            names = ", ".join([*_FUNCTIONS, *_CONSTANTS])
            raise ToolFailed(f"{token[:40]!r} is not known: the calculator knows {names}")
        depth += (token == "(") - (token == ")")  # noqa: S105 - an operator
        if depth > MAX_DEPTH:
            raise _too_deep()


def _parse(source: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except (RecursionError, MemoryError):
        raise _too_deep() from None
    except SyntaxError as error:
        if not source or source[-1] in "+-*/%(," or source.count("(") > source.count(")"):
            raise ToolFailed("the expression ends too early") from None
        following = source[max(0, (error.offset or 1) - 1) :].split()
        raise ToolFailed(f"unexpected {following[0]!r} in the expression") from None


def _compute(node: ast.expr, depth: int = 0) -> Number:
    """Compute a node, and check every value. `depth` counts the enclosing signs and exponents."""
    if depth > MAX_DEPTH:
        raise _too_deep()
    match node:
        case ast.BinOp():
            return _compute_chain(node, depth)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _compute(operand, depth + 1)
        case ast.Constant(value=int() | float() as value):
            return _check(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_compute(argument, depth) for argument in arguments])
        case _:
            raise ToolFailed(f"unexpected {ast.unparse(node)[:40]!r} in the expression: a number was expected")


def _compute_chain(node: ast.BinOp, depth: int) -> Number:
    """Compute `a + b + c` from the left without recursion, because a chain may have hundreds of operators."""
    chain: list[ast.BinOp] = []
    first: ast.expr = node
    while isinstance(first, ast.BinOp):
        chain.append(first)
        first = first.left
    value = _compute(first, depth)
    for binary in reversed(chain):
        right = _compute(binary.right, depth + isinstance(binary.op, ast.Pow))
        value = _check(_OPERATORS[type(binary.op)](value, right))
    return value


def _call(name: str, values: Sequence[Number]) -> Number:
    function, min_count, max_count = _FUNCTIONS[name]
    if not min_count <= len(values) <= max_count:
        raise ToolFailed(f"{name} takes {min_count} to {max_count} arguments, not {len(values)}")
    try:
        return _check(function(*values))
    except ValueError:
        raise ToolFailed(f"{name} has no real result for that number") from None


def _check(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise ToolFailed(f"a number is too large: integers may have at most {MAX_INTEGER_BITS} bits")
    elif not math.isfinite(value):
        raise ToolFailed("a number is too large for a double (about 1.8e308)")
    return value


def _too_deep() -> ToolFailed:
    return ToolFailed(f"the expression is nested deeper than {MAX_DEPTH} levels")


def format_number(value: Number) -> str:
    """Format integers exactly, doubles with up to 15 significant digits, and whole doubles without a point."""
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < _EXACT_FLOAT:
        return str(int(value))
    return format(value, ".15g")
