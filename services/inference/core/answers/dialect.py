"""Derives the markup that a model uses for reasoning and tool calls from the model's chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum


class ToolFormat(StrEnum):
    """The format of tool calls that a model was trained on.

    HERMES: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, one block for each call (Hermes, Qwen).
    LLAMA3: `{"name": .., "parameters": {..}}`, which may follow `<|python_tag|>`. Further calls follow `;` or a new
    line. The format also includes `<function=NAME>{..}</function>`.
    MISTRAL: `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, or `[TOOL_CALLS]NAME[ARGS]{..}` for each call.
    GENERIC: an object with a name and arguments, or an array of such objects, bare or fenced.
    """

    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    GENERIC = "generic"


ENDS_OF_BLOCKS = {
    "<tool_call>": "</tool_call>",
    "<tools>": "</tools>",
    "<function_call>": "</function_call>",
    "<function=": "</function>",
    "[": "]",
    "```": "```",
}
CALL_OPENINGS = (*ENDS_OF_BLOCKS, "[TOOL_CALLS]", "<|python_tag|>", "{")
_OPENINGS_IN_TEXT = {
    ToolFormat.HERMES: ("<tool_call>",),
    ToolFormat.LLAMA3: ("<|python_tag|>", "<function="),
    ToolFormat.MISTRAL: ("[TOOL_CALLS]",),
    ToolFormat.GENERIC: (),
}
_REASONING_MARKERS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))

MEANT_CONTROL_TEXTS = frozenset(
    {
        *(marker for marker in (*CALL_OPENINGS, *ENDS_OF_BLOCKS.values()) if len(marker) > len("```")),
        *(marker for markers in _REASONING_MARKERS for marker in markers),
        "[ARGS]",
        "[CALL_ID]",
    }
)
"""Markup that a parser of answers must see. In many models these texts are control tokens, and an engine normally omits
the text of control tokens; for these it must output the text."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The markup of one model.

    Args:
        tool_format: The format whose openings count in the middle of text; at the beginning, all formats count.
        reasoning: The markers before and after reasoning, or None if all text is content.
        is_in_reasoning: Whether the prompt has opened the reasoning, so that the output begins inside it.
        is_reasoning_model: Whether the model's template supports reasoning.
    """

    tool_format: ToolFormat = ToolFormat.GENERIC
    reasoning: tuple[str, str] | None = _REASONING_MARKERS[0]
    is_in_reasoning: bool = False
    is_reasoning_model: bool = False

    @property
    def openings_in_text(self) -> tuple[str, ...]:
        """The markers that may open a tool call in the middle of text."""
        return _OPENINGS_IN_TEXT[self.tool_format]

    @property
    def may_reason(self) -> bool:
        """Whether reasoning may precede the answer."""
        return self.is_reasoning_model or self.is_in_reasoning

    def after(self, prompt: str) -> Dialect:
        """Return this dialect after a rendered prompt, which may end inside reasoning.

        The template's source alone does not suffice, because a variable may decide whether the prompt opens reasoning.
        """
        is_open = self.reasoning is not None and prompt.rstrip().endswith(self.reasoning[0])
        return replace(self, is_in_reasoning=is_open)


VERBATIM = Dialect(reasoning=None)
"""The dialect of output that is not a chat message: after a plain text prompt, or under the caller's constraint."""


def dialect_of(template_source: str) -> Dialect:
    """Return a model's dialect from the source of its chat template.

    An empty template selects the generic dialect.
    """
    template_markers = next(
        (markers for markers in _REASONING_MARKERS if any(marker in template_source for marker in markers)), None
    )
    markers = template_markers or _REASONING_MARKERS[0]
    is_open = _opens_reasoning(template_source, markers[0])
    return Dialect(_format_of(template_source), markers, is_open, template_markers is not None)


def _format_of(source: str) -> ToolFormat:
    if "[TOOL_CALLS]" in source:
        return ToolFormat.MISTRAL
    if "<tool_call>" in source:
        return ToolFormat.HERMES
    if any(marker in source for marker in ("<|python_tag|>", "<function=", "<|start_header_id|>")):
        return ToolFormat.LLAMA3
    return ToolFormat.GENERIC


def _opens_reasoning(source: str, opening: str) -> bool:
    """Return whether the part of the template that begins the assistant's turn ends with `opening`."""
    _, condition, tail = source.rpartition("add_generation_prompt")
    literal_end = r"""(?:\\n|\s)*(?:['"]|\{%|\Z)"""
    return bool(condition) and re.search(re.escape(opening) + literal_end, tail) is not None
