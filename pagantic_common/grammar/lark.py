"""Translates a Grammar into the Lark dialect of llguidance.

Every terminal is a single character, and everything else is a rule. The engine's lexer always uses the longest match of
a terminal: with `[a-z]+` as a terminal, `[a-z]+ "z"` would reject `az`. The engine's parser, in contrast, follows every
possible reading of a rule.
"""

from __future__ import annotations

import json

from pagantic_common.grammar.tree import CharSet, Choice, Grammar, Literal, Node, Repeat, RuleRef, Sequence

_EMPTY = '""'
_SIGNS: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def to_lark(grammar: Grammar) -> str:
    """Return Lark text whose `start` derives the same texts as `root`."""
    names = {name: f"r{number}" for number, name in enumerate(grammar.rules)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {_emit(node, names)}" for name, node in grammar.rules.items()]
    return "\n".join(lines) + "\n"


def _emit(node: Node, names: dict[str, str]) -> str:
    match node:
        case Literal(text=text):
            return _emit_literal(text)
        case CharSet():
            return _emit_set(node)
        case RuleRef(name=name):
            return names[name]
        case Repeat(item=item, min_count=min_count, max_count=max_count):
            return _emit_repeat(_emit(item, names), min_count, max_count)
        case Sequence(items=items):
            return _emit_sequence([_emit(item, names) for item in items])
        case Choice(options=options):
            return f"({' | '.join(_emit(option, names) for option in options)})"


def _emit_literal(text: str) -> str:
    if len(text) == 1:
        return json.dumps(text)
    return _emit_sequence([json.dumps(char) for char in text])


def _emit_sequence(parts: list[str]) -> str:
    if not parts:
        return _EMPTY
    return f"({' '.join(parts)})"


def _emit_repeat(item: str, min_count: int, max_count: int | None) -> str:
    if max_count == 0 or item == _EMPTY:
        return _EMPTY
    return f"({item}{_emit_limits(min_count, max_count)})"


def _emit_limits(min_count: int, max_count: int | None) -> str:
    if (min_count, max_count) in _SIGNS:
        return _SIGNS[min_count, max_count]
    if max_count is None:
        return f"{{{min_count},}}"
    return f"{{{min_count},{max_count}}}"


def _emit_set(node: CharSet) -> str:
    if not node.ranges:  # any character
        return r"/[\x{0}-\x{10FFFF}]/"
    body = "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in node.ranges)
    if node.negated:
        return f"/[^{body}]/"
    return f"/[{body}]/"
