"""Represents a grammar as a tree, and finds its nullable rules, finite rules and leftmost references."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pagantic_common.grammar.problems import Problem

MAX_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Literal:
    """A fixed text, which may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CharSet:
    """A character inside these inclusive ranges of code points or, if negated, outside of them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class RuleRef:
    """A reference to a rule. `offset` is its position in the grammar's text."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """The item repeated `min_count` to `max_count` times. A `max_count` of None sets no limit."""

    item: Node
    min_count: int
    max_count: int | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence of the items. A sequence without items represents the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of exactly one option."""

    options: tuple[Node, ...]


Node = Literal | CharSet | RuleRef | Repeat | Sequence | Choice


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name, including `root`, and warnings. Every referenced rule is defined."""

    rules: Mapping[str, Node]
    warnings: tuple[Problem, ...] = ()


def refs_of(node: Node) -> Iterator[RuleRef]:
    """Yield the node's references to rules, left to right."""
    match node:
        case RuleRef():
            yield node
        case Repeat(item=item):
            yield from refs_of(item)
        case Sequence(items=children) | Choice(options=children):
            for child in children:
                yield from refs_of(child)
        case _:
            pass


def nullable_rules(rules: Mapping[str, Node]) -> frozenset[str]:
    """Return the rules that derive the empty text."""

    def is_empty(node: Node, known: set[str]) -> bool:
        match node:
            case Literal(text=text):
                return not text
            case RuleRef(name=name):
                return name in known
            case Repeat(item=item, min_count=min_count):
                return min_count == 0 or is_empty(item, known)
            case Sequence(items=items):
                return all(is_empty(item, known) for item in items)
            case Choice(options=options):
                return any(is_empty(option, known) for option in options)
            case _:
                return False

    return _least_fixpoint(rules, is_empty)


def finite_rules(rules: Mapping[str, Node]) -> frozenset[str]:
    """Return the rules that derive a finite text. All other rules never end."""

    def is_finite(node: Node, known: set[str]) -> bool:
        match node:
            case RuleRef(name=name):
                return name in known
            case Repeat(item=item, min_count=min_count):
                return min_count == 0 or is_finite(item, known)
            case Sequence(items=items):
                return all(is_finite(item, known) for item in items)
            case Choice(options=options):
                return any(is_finite(option, known) for option in options)
            case _:
                return True

    return _least_fixpoint(rules, is_finite)


def _least_fixpoint(rules: Mapping[str, Node], holds: Callable[[Node, set[str]], bool]) -> frozenset[str]:
    """Return the rules for which `holds` is true.

    A rule is only examined again after `holds` becomes true for a rule that it references.
    """
    users: dict[str, set[str]] = {}
    for name, node in rules.items():
        for ref in refs_of(node):
            users.setdefault(ref.name, set()).add(name)
    true_rules: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in true_rules and name in rules and holds(rules[name], true_rules):
            true_rules.add(name)
            waiting.extend(users.get(name, ()))
    return frozenset(true_rules)


def left_refs_of(node: Node, nullable: frozenset[str]) -> tuple[set[str], bool]:
    """Return the rules that can be leftmost in the node, and whether the node can be empty."""
    match node:
        case RuleRef(name=name):
            return {name}, name in nullable
        case Repeat(item=item, min_count=min_count, max_count=max_count):
            if max_count == 0:
                return set(), True
            names, is_empty = left_refs_of(item, nullable)
            return names, is_empty or min_count == 0
        case Sequence(items=items):
            return _left_refs_of_sequence(items, nullable)
        case Choice(options=options):
            return _left_refs_of_choice(options, nullable)
        case _:
            return set(), node == Literal("")


def _left_refs_of_choice(options: tuple[Node, ...], nullable: frozenset[str]) -> tuple[set[str], bool]:
    lefts = [left_refs_of(option, nullable) for option in options]
    return set().union(*(names for names, _ in lefts)), any(is_empty for _, is_empty in lefts)


def _left_refs_of_sequence(items: tuple[Node, ...], nullable: frozenset[str]) -> tuple[set[str], bool]:
    names: set[str] = set()
    for item in items:
        more, is_empty = left_refs_of(item, nullable)
        names |= more
        if not is_empty:
            return names, False
    return names, True
