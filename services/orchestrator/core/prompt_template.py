"""Templates of system prompts: text with `{{ name }}` and `{% if name %}`, and nothing else.

They are Jinja templates cut down to what is bounded: no loops, calls, filters or attributes, so rendering takes time
linear in the template and runs nothing. Values are text and are put in as they are; what looks like a template in them
is not read as one. Every variable that a template names must be given, also one in a branch that is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

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

_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


class PromptTemplateError(ValueError):
    """The template is malformed, or the variables are not what it takes; the message says which and where."""


class PromptTemplate:
    """A checked template; raises PromptTemplateError for a source that is none.

    Attributes:
        names: The variables that it takes, all of them.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_PROMPT_CHARS:
            raise PromptTemplateError(f"it has {len(source)} characters, the limit is {MAX_PROMPT_CHARS}")
        try:
            tree = _ENVIRONMENT.parse(source)
            _check(tree)
            self._template = _ENVIRONMENT.from_string(tree)
        except TemplateSyntaxError as error:
            raise PromptTemplateError(f"line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise PromptTemplateError("it is nested too deeply") from None
        self.names = frozenset(node.name for node in tree.find_all(nodes.Name))

    def render(self, variables: Mapping[str, str]) -> str:
        """Return the text; the variables must be exactly those of `names`."""
        if missing := sorted(self.names - variables.keys()):
            raise PromptTemplateError(f"variable {missing[0]!r} is missing")
        if unknown := sorted(variables.keys() - self.names):
            known = ", ".join(sorted(self.names)) or "none"
            raise PromptTemplateError(f"variable {unknown[0][:64]!r} is not one of its variables: {known}")
        parts: list[str] = []
        left = MAX_PROMPT_CHARS
        for part in self._template.generate(dict(variables)):
            left -= len(part)
            if left < 0:
                raise PromptTemplateError(f"the prompt has more than {MAX_PROMPT_CHARS} characters")
            parts.append(part)
        return "".join(parts)


def _check(node: nodes.Node) -> None:
    if not isinstance(node, _ALLOWED):
        raise PromptTemplateError(f"line {node.lineno}: only {{{{ name }}}} and {{% if name %}} may be used")
    if isinstance(node, nodes.Const) and not isinstance(node.value, str):
        raise PromptTemplateError(f"line {node.lineno}: {node.value!r} is no text, and all values are")
    if isinstance(node, nodes.Operand) and node.op not in _COMPARISONS:
        raise PromptTemplateError(f"line {node.lineno}: values are compared by == and != only")
    if isinstance(node, nodes.Name) and node.name in _RESERVED:
        raise PromptTemplateError(f"line {node.lineno}: a variable may not be named {node.name!r}")
    for child in node.iter_child_nodes():
        _check(child)
