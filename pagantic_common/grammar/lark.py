"""Grammar -> the Lark dialect of llguidance.

Everything becomes rules over terminals of one character: the engine's lexer takes the longest match of a terminal, so
`[a-z]+ "z"` as one terminal each would refuse `az`; as rules its parser keeps every reading.
"""

from __future__ import annotations

import json

from pagantic_common.grammar.tree import CharSet, Choice, Grammar, Literal, Node, Repeat, RuleRef, Sequence

_EMPTY = '""'


def to_lark(grammar: Grammar) -> str:
    """Return Lark text whose `start` derives exactly what `root` does."""
    names = {name: f"r{number}" for number, name in enumerate(grammar.rules)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {_emit(node, names)}" for name, node in grammar.rules.items()]
    return "\n".join(lines) + "\n"


def _emit(node: Node, names: dict[str, str]) -> str:
    match node:
        case Literal(text=text):
            parts = [json.dumps(char) for char in text]
            return _EMPTY if not parts else parts[0] if len(parts) == 1 else f"({' '.join(parts)})"
        case CharSet():
            return _emit_set(node)
        case RuleRef(name=name):
            return names[name]
        case Repeat(item=item, least=least, most=most):
            return _emit_repeat(_emit(item, names), least, most)
        case Sequence(items=items):
            return f"({' '.join(_emit(item, names) for item in items)})" if items else _EMPTY
        case Choice(options=options):
            return f"({' | '.join(_emit(option, names) for option in options)})"


def _emit_repeat(item: str, least: int, most: int | None) -> str:
    if most == 0 or item == _EMPTY:
        return _EMPTY
    limits = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if limits is None:
        limits = f"{{{least},{'' if most is None else most}}}"
    return f"({item}{limits})"


def _emit_set(node: CharSet) -> str:
    if not node.ranges:  # any character
        return r"/[\x{0}-\x{10FFFF}]/"
    body = "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in node.ranges)
    return f"/[{'^' if node.negated else ''}{body}]/"
