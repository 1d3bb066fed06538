"""Renders system prompt templates: text with `{{ name }}`, `{{ session.key }}` and `{% if name %}` only.

The templates are a bounded subset of Jinja without loops, calls, filters or attributes, so rendering takes linear time
and executes no code. Values are inserted as plain text, even if they look like a template. Every variable must be
given, even if it occurs only in a branch not taken. The values of `session` come from the conversation's state. A
missing value is false in a condition, and inserting it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagantic_common.domain.text.json_text import parse_json

MAX_PROMPT_CHARS = 1_000_000

_ALLOWED = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.If,
    nodes.Not,
    nodes.And,
    nodes.Or,
    nodes.Compare,
    nodes.Operand,
)
_COMPARISONS = frozenset({"eq", "ne"})
_RESERVED = frozenset({"self"})
_SESSION = "session"
_SESSION_VALUE = "_session_value_"
_NO_STATE: Mapping[str, str] = MappingProxyType({})


_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


class PromptTemplateError(ValueError):
    """Raised if the template is malformed, or if its variables are wrong.

    The message names the line or the variable.
    """


class _Missing:
    """A missing session value: false in a condition, and PromptTemplateError on insertion."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        raise PromptTemplateError(f"the session has no value {self._key!r}: set it with UpdateSession")


class _FalseText(str):
    """The JSON text of a value such as `false` or `null`: false in a condition although it is not empty."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


class PromptTemplate:
    """A checked template. The constructor raises PromptTemplateError if the source is invalid.

    Attributes:
        names: The variables of the template, each of which must be given.
        session_keys: The keys of the session values that the template reads.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_PROMPT_CHARS:
            raise PromptTemplateError(f"it has {len(source)} characters, the limit is {MAX_PROMPT_CHARS}")
        try:
            tree = _ENVIRONMENT.parse(source)
            keys = _name_session_values(tree)
            _check(tree)
            self._template = _ENVIRONMENT.from_string(tree)
        except TemplateSyntaxError as error:
            raise PromptTemplateError(f"line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise PromptTemplateError("it is nested too deeply") from None
        self._keys = keys
        self.session_keys = frozenset(keys.values())
        self.names = frozenset(node.name for node in tree.find_all(nodes.Name)) - keys.keys()

    def render(self, variables: Mapping[str, str], session: Mapping[str, str] = _NO_STATE) -> str:
        """Render the template. The variables must match `names` exactly.

        `session` contains the conversation's values, which are JSON documents. A string is inserted as its text, and
        any other value as JSON. In a condition, false, null, zero and empty values are false.
        """
        if missing := sorted(self.names - variables.keys()):
            raise PromptTemplateError(f"variable {missing[0]!r} is missing")
        if unknown := sorted(variables.keys() - self.names):
            names = ", ".join(sorted(self.names)) or "none"
            raise PromptTemplateError(f"variable {unknown[0][:64]!r} is not one of its variables: {names}")
        parts: list[str] = []
        remaining_chars = MAX_PROMPT_CHARS
        values: dict[str, object] = dict(variables)
        values |= {name: _session_value(session, key) for name, key in self._keys.items()}
        for part in self._template.generate(values):
            remaining_chars -= len(part)
            if remaining_chars < 0:
                raise PromptTemplateError(f"the prompt has more than {MAX_PROMPT_CHARS} characters")
            parts.append(part)
        return "".join(parts)


def _session_value(session: Mapping[str, str], key: str) -> object:
    if key not in session:
        return _Missing(key)
    value = parse_json(session[key])
    if isinstance(value, str):
        return value
    if not value:
        return _FalseText(session[key])
    return session[key]


def _name_session_values(node: nodes.Node) -> dict[str, str]:
    """Replace each `session.key` and `session["key"]` with a variable.

    Returns the keys by the names of their variables.
    """
    keys: dict[str, str] = {}

    def rename_fields(parent: nodes.Node) -> None:
        for field, value in parent.iter_fields():
            if isinstance(value, list):
                setattr(parent, field, [renamed(item) for item in value])
            else:
                setattr(parent, field, renamed(value))

    def renamed(value: Any) -> Any:
        if not isinstance(value, nodes.Node):
            return value
        new_node = _named(value, keys)
        rename_fields(new_node)
        return new_node

    rename_fields(node)
    return keys


def _named(node: nodes.Node, keys: dict[str, str]) -> nodes.Node:
    """Return the variable that replaces a session value, or the node itself if it is not a session value."""
    if isinstance(node, nodes.Name) and node.name.startswith(_SESSION_VALUE):
        raise PromptTemplateError(f"line {node.lineno}: a variable may not be named {node.name!r}")
    key = _session_key(node)
    if key is None:
        return node
    names_by_key = {kept: name for name, kept in keys.items()}
    name = names_by_key.get(key, f"{_SESSION_VALUE}{len(keys)}")
    keys[name] = key
    return nodes.Name(name, "load", lineno=node.lineno)


def _session_key(node: nodes.Node) -> str | None:
    """Return the key of a session value, or None if the node is not a session value."""
    if not isinstance(node, nodes.Getattr | nodes.Getitem):
        return None
    if not isinstance(node.node, nodes.Name) or node.node.name != _SESSION:
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None


def _check(node: nodes.Node) -> None:
    if not isinstance(node, _ALLOWED):
        raise PromptTemplateError(
            f"line {node.lineno}: only {{{{ name }}}}, {{{{ session.key }}}} and {{% if name %}} may be used"
        )
    if isinstance(node, nodes.Const) and not isinstance(node.value, str):
        raise PromptTemplateError(f"line {node.lineno}: {node.value!r} must be text, as all values are")
    if isinstance(node, nodes.Operand) and node.op not in _COMPARISONS:
        raise PromptTemplateError(f"line {node.lineno}: values are compared by == and != only")
    if isinstance(node, nodes.Name) and node.name in _RESERVED:
        raise PromptTemplateError(f"line {node.lineno}: a variable may not be named {node.name!r}")
    for child in node.iter_child_nodes():
        _check(child)
