"""Finds problems that span several rules of a grammar, with their positions in the text."""

from __future__ import annotations

from collections.abc import Mapping

from pagantic_common.grammar.problems import Problem, place_of
from pagantic_common.grammar.tree import Node, finite_rules, left_refs_of, nullable_rules, refs_of

MAX_SHOWN_RULES = 20  # The message that reports a cycle shows at most this many rules.


def problem_at(text: str, offset: int, message: str) -> Problem:
    """Make a problem at an offset in the text."""
    line, column = place_of(text, offset)
    return Problem(message, line, column)


def find_problems(text: str, rules: Mapping[str, Node], starts: Mapping[str, int]) -> list[Problem]:
    """Find a missing root and undefined rules or, if neither occurs, left recursion."""
    problems = []
    if "root" not in rules:
        problems.append(Problem("there is no rule named exactly 'root'"))
    named: set[str] = set()
    for node in rules.values():
        for ref in refs_of(node):
            if ref.name not in rules and ref.name not in named:
                named.add(ref.name)
                problems.append(problem_at(text, ref.offset, f"rule {ref.name!r} is not defined"))
    if not problems and (cycle := _find_left_cycle(rules)):
        chain = " -> ".join([*cycle[:MAX_SHOWN_RULES], cycle[0]])
        problems.append(problem_at(text, starts[cycle[0]], f"rule {cycle[0]!r} is left-recursive: {chain}"))
    return problems


def _find_left_cycle(rules: Mapping[str, Node]) -> list[str]:
    """Return a cycle of rules in which each rule has the next rule leftmost, or an empty list without a cycle.

    The last rule has the first rule leftmost.
    """
    nullable = nullable_rules(rules)
    lefts = {name: left_refs_of(node, nullable)[0] for name, node in rules.items()}
    _remove_unreferenced(lefts)
    if not lefts:
        return []
    # Each remaining rule is leftmost in another remaining rule, so walking backwards from any rule reaches a cycle.
    before = {target: name for name, targets in lefts.items() for target in targets}
    name = next(name for name in rules if name in lefts)
    path: dict[str, None] = {}
    while name not in path:
        path[name] = None
        name = before[name]
    visited = list(path)
    return visited[visited.index(name) :][::-1]


def _remove_unreferenced(lefts: dict[str, set[str]]) -> None:
    """Repeatedly remove the rules that are not leftmost in any other rule (Kahn's algorithm)."""
    incoming = dict.fromkeys(lefts, 0)
    for targets in lefts.values():
        for target in targets:
            incoming[target] += 1
    free = [name for name, count in incoming.items() if not count]
    while free:
        for target in lefts.pop(free.pop()):
            incoming[target] -= 1
            if not incoming[target]:
                free.append(target)


def find_warnings(text: str, rules: Mapping[str, Node], starts: Mapping[str, int]) -> list[Problem]:
    """Return warnings about unreachable rules and rules that never end. The grammar must have no problems."""
    reached = {"root"}
    waiting = ["root"]
    while waiting:
        for ref in refs_of(rules[waiting.pop()]):
            if ref.name not in reached:
                reached.add(ref.name)
                waiting.append(ref.name)
    finite = finite_rules(rules)
    warnings = []
    for name, start in starts.items():
        if name not in reached:
            warnings.append(problem_at(text, start, f"rule {name!r} cannot be reached from root"))
        elif name not in finite:
            warnings.append(problem_at(text, start, f"rule {name!r} never ends: it derives no finite text"))
    return warnings
