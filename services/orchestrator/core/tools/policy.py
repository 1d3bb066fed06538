"""Policies for tool calls (allow, ask or deny), and the selection of tools that fit into a prompt."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolDefinition, ToolSafety

MAX_SEARCHED = 100
QUERY_MESSAGES = 3
MAX_RULES = 128
MAX_PATTERN_CHARS = 64
_CLASS_PREFIX = "safety:"
_PATTERN = re.compile(rf"[A-Za-z0-9_*-]{{1,{MAX_PATTERN_CHARS}}}")
_PATTERN_HELP = f"a tool has 1 to {MAX_PATTERN_CHARS} letters, digits, '_' or '-', and * stands for any text"
# CHAT offers tools of these classes only if the request or the deployment names the tool.
NAMED_ONLY = frozenset({ToolSafety.WRITE, ToolSafety.EXTERNAL})


class ToolAction(StrEnum):
    """The action on a tool call: allow it, ask for an approval, or deny it."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_STRICTNESS = list(ToolAction)


@dataclass(frozen=True, slots=True)
class ToolRule:
    """The action for the tools with names that match `pattern`, or for the tools of a safety class.

    In a pattern, `*` matches any text.
    """

    action: ToolAction
    pattern: str = ""
    safety: ToolSafety | None = None

    def matches(self, tool: ToolDefinition) -> bool:
        """Return whether the rule matches a tool."""
        if self.pattern:
            return fnmatchcase(tool.name, self.pattern)
        return tool.safety is self.safety

    @property
    def specificity(self) -> int:
        """The rank of the rule: exact names first, then patterns from longest to shortest, then classes."""
        if "*" in self.pattern:
            return len(self.pattern)
        return len(self.pattern) and MAX_PATTERN_CHARS + 1


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """A set of rules. The most specific rule wins; among equally specific rules, the last."""

    rules: tuple[ToolRule, ...] = ()

    def action_for(self, tool: ToolDefinition) -> ToolAction | None:
        """Return the action for a tool, or None if no rule applies."""
        if not self.rules:
            return None
        matching = [rule for rule in self.rules if rule.matches(tool)]
        if not matching:
            return None
        return max(reversed(matching), key=lambda rule: rule.specificity).action


@dataclass(frozen=True, slots=True)
class ToolPolicies:
    """The policies of the deployment and of a request. A request can only tighten the deployment's policy."""

    deployment: ToolPolicy = ToolPolicy()
    request: ToolPolicy = ToolPolicy()

    def action_for(self, tool: ToolDefinition) -> ToolAction:
        """Return the stricter of the two policies' actions, or ALLOW if no rule applies."""
        actions = (self.deployment.action_for(tool), self.request.action_for(tool))
        return max((action for action in actions if action), key=_STRICTNESS.index, default=ToolAction.ALLOW)

    def is_offered_unnamed(self, tool: ToolDefinition) -> bool:
        """Return whether the tool is offered to a request that names no tools."""
        if self.action_for(tool) is ToolAction.DENY:
            return False
        is_named = self.deployment.action_for(tool) or self.request.action_for(tool)
        return tool.safety not in NAMED_ONLY or is_named is not None


def check_rules(rules: Sequence[ToolRule]) -> None:
    """Raise InvalidRequest if there are too many rules, or if a rule is invalid.

    A rule must have either a pattern, of limited length, or a safety class.
    """
    if len(rules) > MAX_RULES:
        raise InvalidRequest(f"tool_rules has {len(rules)} entries: it takes at most {MAX_RULES}")
    for rule in rules:
        if bool(rule.pattern) == (rule.safety is not None):
            raise InvalidRequest("a rule of tool_rules must have either a tool or a safety class")
        if rule.pattern and not _PATTERN.fullmatch(rule.pattern):
            raise InvalidRequest(f"a rule of tool_rules names {rule.pattern[:80]!r}: {_PATTERN_HELP}")


def parse_policy(text: str) -> ToolPolicy:
    """Parse a policy such as `send_*=ask, safety:external=deny`. Raises ValueError if it is invalid."""
    return ToolPolicy(tuple(_parse_rule(part.strip()) for part in text.split(",") if part.strip()))


def _parse_rule(text: str) -> ToolRule:
    subject, _, action = (part.strip() for part in text.rpartition("="))
    if not subject or action not in list(ToolAction):
        raise ValueError(f"{text!r} must be a tool, or {_CLASS_PREFIX}CLASS, then = and one of {', '.join(ToolAction)}")
    name = subject.removeprefix(_CLASS_PREFIX)
    if name == subject and not _PATTERN.fullmatch(name):
        raise ValueError(f"{name!r}: {_PATTERN_HELP}")
    if name == subject:
        return ToolRule(ToolAction(action), pattern=name)
    if name not in list(ToolSafety):
        raise ValueError(f"{subject!r} must name one of {', '.join(ToolSafety)}")
    return ToolRule(ToolAction(action), safety=ToolSafety(name))


def size_bytes(tool: ToolDefinition) -> int:
    """Return the size of a tool in a prompt, in bytes of UTF-8."""
    texts = (tool.name, tool.description, tool.parameters_json)
    return sum(len(text.encode(errors="replace")) for text in texts)


@lru_cache(maxsize=8)
def fit_together(tools: tuple[ToolDefinition, ...], max_bytes: int) -> bool:
    """Return whether all tools fit into `max_bytes`. A limit of 0 means no limit."""
    return not max_bytes or sum(map(size_bytes, tools)) <= max_bytes


def query_of(messages: Sequence[Message]) -> str:
    """Return the query for searching tools: the last messages of the user."""
    texts = [message.content for message in messages if message.role is Role.USER]
    return "\n".join(texts[-QUERY_MESSAGES:])


def called_names(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools that a conversation has called, most recent first."""
    return list(dict.fromkeys(call.name for message in reversed(messages) for call in message.tool_calls))


def select(tools: Sequence[ToolDefinition], preferred: Collection[str], max_bytes: int) -> tuple[ToolDefinition, ...]:
    """Return the preferred tools that fit, in the order of `tools`.

    The first preferred tool is returned even if it does not fit.
    """
    by_name = {tool.name: tool for tool in tools}
    chosen: set[str] = set()
    left_bytes = max_bytes
    for name in preferred:
        if name not in by_name:
            continue
        taken_bytes = size_bytes(by_name[name])
        if not chosen or taken_bytes <= left_bytes:
            chosen.add(name)
            left_bytes -= taken_bytes
    return tuple(tool for tool in tools if tool.name in chosen)
