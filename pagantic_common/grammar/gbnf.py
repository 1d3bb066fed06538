"""Parses GBNF, the grammar format of llama.cpp, into a Grammar.

Theory of operation. The parser makes a single pass over the text with a stack of open groups, so that nesting uses no
Python frames. Undefined rules and left recursion are detected afterwards, in the tree. The depth is limited because
later walks of the tree recurse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagantic_common.grammar.checks import find_problems, find_warnings, problem_at
from pagantic_common.grammar.problems import GrammarError, Problem
from pagantic_common.grammar.tree import (
    MAX_CODE_POINT,
    CharSet,
    Choice,
    Grammar,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Sequence,
)

MAX_DEPTH = 60  # largest depth of nested groups and repetitions in a rule
MAX_REPETITIONS = 2000
MAX_PROBLEMS = 20
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_LIMITS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SURROGATES = range(0xD800, 0xE000)


def parse_gbnf(text: str) -> Grammar:
    """Parse GBNF. Raises GrammarError, which names every problem.

    A syntax error is reported alone. Otherwise, undefined rules, a missing root and left recursion are reported. If a
    rule has two definitions, the last definition applies, as in llama.cpp, with a warning.
    """
    parser = _Parser(text)
    try:
        parser.parse_rules()
    except _SyntaxProblem as problem:
        raise GrammarError(problem_at(text, problem.offset, str(problem))) from None
    problems = find_problems(text, parser.rules, parser.starts)
    if problems:
        raise GrammarError(*problems[:MAX_PROBLEMS])
    return Grammar(parser.rules, tuple(parser.warnings + find_warnings(text, parser.rules, parser.starts)))


class _SyntaxProblem(Exception):
    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(slots=True)
class _Group:
    """An open group: its finished options, and the items of its current option with the depth of each item."""

    start: int
    options: list[Node] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    depth: int = 0

    def end_option(self) -> None:
        self.options.append(_join(Sequence, self.items))
        self.depth = max(self.depth, *self.depths, 0)
        self.items = []
        self.depths = []

    def close(self) -> Node:
        self.end_option()
        return _join(Choice, self.options)


def _join(kind: type[Sequence | Choice], nodes: list[Node]) -> Node:
    """Return a node of this kind, or the node itself if there is only one."""
    if len(nodes) == 1:
        return nodes[0]
    return kind(tuple(nodes))


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.rules: dict[str, Node] = {}
        self.starts: dict[str, int] = {}
        self.warnings: list[Problem] = []

    def fail(self, message: str, offset: int | None = None) -> _SyntaxProblem:
        if offset is None:
            offset = self.at
        return _SyntaxProblem(offset, message)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip_space(self, *, newlines: bool) -> None:
        text = self.text
        at = self.at
        size = len(text)
        while at < size:
            char = text[at]
            if char == "#":
                at = text.find("\n", at)
                if at < 0:
                    at = size
            elif char in " \t" or (newlines and char in "\r\n"):
                at += 1
            else:
                break
        self.at = at

    def parse_rules(self) -> None:
        self.skip_space(newlines=True)
        while self.at < len(self.text):
            start = self.at
            name = self.read_word()
            if not name:
                raise self.missing_name()
            self.skip_space(newlines=False)
            if not self.text.startswith("::=", self.at):
                raise self.fail(f"'::=' was expected after {name!r}")
            self.at += 3
            self.skip_space(newlines=True)
            if name in self.rules:
                self.warnings.append(problem_at(self.text, start, f"rule {name!r} is defined again; the last counts"))
            self.rules[name] = self.parse_body()
            self.starts[name] = start
            self.skip_space(newlines=True)

    def missing_name(self) -> _SyntaxProblem:
        if self.peek() == "|":
            hint = "to continue a rule on the next line, end the line with '|' or use a group"
            return self.fail(f"a rule name was expected, not '|'; {hint}")
        return self.fail(f"a rule name was expected, not {self.peek()!r}")

    def read_word(self) -> str:
        start = self.at
        while self.peek() in _WORD:
            self.at += 1
        return self.text[start : self.at]

    def parse_body(self) -> Node:
        """Read alternatives up to the newline that ends the rule. A newline inside a group does not end the rule."""
        stack = [_Group(self.at)]
        while True:
            char = self.peek()
            if char == "" or char in "\r\n":  # Newlines inside a group were skipped as space.
                if len(stack) > 1:
                    raise self.fail("the group is not closed", stack[-1].start)
                return stack[0].close()
            if char == "|":
                self.at += 1
                stack[-1].end_option()
                self.skip_space(newlines=True)
                continue
            if char == "(":
                if len(stack) > MAX_DEPTH:
                    raise self.fail(f"groups are nested deeper than {MAX_DEPTH}")
                stack.append(_Group(self.at))
                self.at += 1
                self.skip_space(newlines=True)
                continue
            self.parse_item(stack, char)
            self.skip_space(newlines=len(stack) > 1)

    def parse_item(self, stack: list[_Group], char: str) -> None:
        group = stack[-1]
        start = self.at
        node: Node
        depth = 0
        if char == ")":
            if len(stack) == 1:
                raise self.fail("')' closes no group")
            self.at += 1
            closed = stack.pop()
            node, depth, group = closed.close(), closed.depth + 1, stack[-1]
        elif char in "*+?{":
            if not group.items:
                raise self.fail(f"{char!r} follows nothing that it could repeat")
            min_count, max_count = self.parse_limits(char)
            node, depth = Repeat(group.items.pop(), min_count, max_count), group.depths.pop() + 1
        else:
            node = self.parse_plain(char)
        if depth > MAX_DEPTH:
            raise self.fail(f"groups and repetitions are nested deeper than {MAX_DEPTH}", start)
        group.items.append(node)
        group.depths.append(depth)

    def parse_plain(self, char: str) -> Node:
        start = self.at
        if char == '"':
            return self.parse_literal()
        if char == "[":
            return self.parse_set()
        if char == ".":
            self.at += 1
            return CharSet((), negated=True)
        if char in "<!":
            raise self.fail("token literals (<name>, <[id]>) are not supported: they mean one model's vocabulary only")
        if word := self.read_word():
            return RuleRef(word, start)
        raise self.fail(f"unexpected {char!r}")

    def parse_limits(self, char: str) -> tuple[int, int | None]:
        start = self.at
        self.at += 1
        if char != "{":
            return _LIMITS[char]
        min_count = self.read_count()
        max_count: int | None = min_count
        if self.peek() == ",":
            self.at += 1
            self.skip_space(newlines=False)
            max_count = None
            if self.peek() != "}":
                max_count = self.read_count()
        if self.peek() != "}":
            raise self.fail("'}' was expected")
        self.at += 1
        if max_count is not None and max_count < min_count:
            raise self.fail(f"the repetition's limits are reversed: {min_count} and {max_count}", start)
        return min_count, max_count

    def read_count(self) -> int:
        self.skip_space(newlines=False)
        start = self.at
        while self.peek() in _DIGITS:
            self.at += 1
        digits = self.text[start : self.at]
        if not digits:
            raise self.fail("a number was expected")
        if len(digits) > 9 or int(digits) > MAX_REPETITIONS:  # noqa: PLR2004 - more digits need no conversion
            raise self.fail(f"more than {MAX_REPETITIONS} repetitions", start)
        self.skip_space(newlines=False)
        return int(digits)

    def parse_literal(self) -> Literal:
        start = self.at
        self.at += 1
        chars: list[str] = []
        while (char := self.peek()) != '"':
            if char in ("", "\n", "\r"):
                raise self.fail("the string is not closed", start)
            chars.append(chr(self.read_char()))
        self.at += 1
        return Literal("".join(chars))

    def parse_set(self) -> CharSet:
        start = self.at
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while self.peek() != "]":
            if self.peek() in ("", "\n", "\r"):
                raise self.fail("the character class is not closed", start)
            first = self.at
            low = high = self.read_char()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.read_char()
            if high < low:
                raise self.fail(f"the range {self.text[first : self.at]!r} is reversed", first)
            ranges.append((low, high))
        self.at += 1
        if not ranges:
            raise self.fail("the character class is empty", start)
        return CharSet(tuple(ranges), negated)

    def read_char(self) -> int:
        """Read a character or escape, and return its code point."""
        start = self.at
        char = self.text[start]
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.peek()
        self.at += 1
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        if not kind:
            raise self.fail("the text ends inside an escape", start)
        length = _HEX_LENGTH.get(kind)
        if length is None:
            raise self.fail(f"unknown escape of {kind!r}", start)
        digits = self.text[self.at : self.at + length]
        if len(digits) < length or not _HEX.issuperset(digits):
            raise self.fail(f"the escape of {kind!r} needs {length} hexadecimal digits", start)
        self.at += length
        code = int(digits, 16)
        if code > MAX_CODE_POINT or code in _SURROGATES:
            raise self.fail(f"{code:#x} is no Unicode character", start)
        return code
