"""Builds the messages of a prompt from the parts that PREPARE resolved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.images import shifted
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.schema_form import form_of
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.contract import OutputContract, SchemaInPrompt
from services.orchestrator.core.model.request import Request, SystemPrompt
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.retrieval import ContextPolicy


@dataclass(frozen=True, slots=True)
class Prepared(Answer):
    """The parts of the first inference, resolved by PREPARE.

    Attributes:
        system_prompt: The system prompt, which may be empty.
        history: The messages before those of the request: a summary, if there is a summary, and then the stored
            conversation from position `history_start` to before `history_end`.
        context_message: The retrieved context, or None if there is no context.
        retrieval_confidence: A score from 0 to 1 for how well the context covers the question, or the probability that
            it contains the answer.
        tools: The tools that the model may call.
        engine_text: The decoder's constraint, or an empty string if there is no constraint.
        is_fully_enforced: Whether the decoder enforces the whole schema.
        usage: The tokens used by PREPARE.
        cited_chunks: The chunks of the context in the order of their numbers, kept only for an answer with citations.
        warnings: Warnings about parts that could not be resolved without failing the request.
    """

    kind: ClassVar[str] = "Prepared"

    system_prompt: str = ""
    history: tuple[Message, ...] = ()
    history_start: int = 0
    history_end: int = 0
    context_message: Message | None = None
    retrieval_confidence: float | None = None
    tools: tuple[ToolDefinition, ...] = ()
    engine_text: str = ""
    is_fully_enforced: bool = False
    usage: TokenUsage = TokenUsage()
    warnings: tuple[ResponseWarning, ...] = ()
    cited_chunks: tuple[Chunk, ...] = ()

    @property
    def cited_sources(self) -> tuple[str, ...]:
        """The texts that an answer may quote."""
        return tuple(chunk.content for chunk in self.cited_chunks)

    def as_recorded(self) -> Self:
        """Return the answer without usage. It keeps its whole history, so its conversation positions are reset."""
        return replace(self, usage=TokenUsage(), history_start=0, history_end=0)


MAX_AUTO_SCHEMA_BYTES = 8 * 1024
_AS_FORM = "Answer with JSON in this form:"
_AS_SCHEMA = "Answer with JSON that satisfies this JSON Schema:"
_AS_OBJECT = "Answer with a JSON object."
_JSON = re.compile("json", re.IGNORECASE)
_FOR_TOOLS = frozenset({"$schema", "$id", "$comment"})


def assemble_messages(request: Request, prepared: Prepared, transcript: Sequence[Message]) -> tuple[Message, ...]:
    """Join the system prompt, the stored conversation, the new turn and its transcript.

    Context in the user's role is added to the last user message, or to the first user message if the policy places
    context after the system prompt. Any other context is a separate message before the last user message, or directly
    after the system prompt. A summary in the user's role is added to the user message that follows it, since
    many templates require that users and assistants take turns. A raw prompt has no messages, and nothing is added.
    """
    if request.text_prompt:
        return ()
    turn_messages = list(request.messages)
    instructions = [prepared.system_prompt]
    if turn_messages[0].role is Role.SYSTEM:
        instructions.append(turn_messages.pop(0).content)
    instructions.append(schema_prompt(request, prepared.system_prompt))
    messages = _conversation(prepared, turn_messages)
    if prepared.context_message is not None:
        _put_context(request, messages, prepared.context_message)
    if system := _join_parts(instructions):
        messages.insert(0, Message(Role.SYSTEM, content=system))
    return (*messages, *transcript)


def _conversation(prepared: Prepared, given: Sequence[Message]) -> list[Message]:
    """Return the visible messages of the history and a turn. A summary is added to the next user message."""
    has_summary = len(prepared.history) > prepared.history_end - prepared.history_start
    messages = [message for message in (*_without_lone_results(prepared.history), *given) if message.is_shown]
    if has_summary and [message.role for message in messages[:2]] == [Role.USER, Role.USER]:
        summary, first, *others = messages
        return [_after(summary.content, first), *others]
    return messages


def _without_lone_results(history: Sequence[Message]) -> list[Message]:
    """Return the history without results of removed calls, because templates and other engines reject them."""
    called = {call.id for message in history for call in message.tool_calls}
    return [message for message in history if message.role is not Role.TOOL or message.tool_call_id in called]


def _put_context(request: Request, messages: list[Message], context: Message) -> None:
    questions = [index for index, message in enumerate(messages) if message.role is Role.USER]
    is_early = request.context is not None and request.context.is_after_system
    if context.role is not Role.USER or not questions:
        messages.insert(0 if is_early else max(questions, default=len(messages)), context)
        return
    index = questions[0] if is_early else questions[-1]
    messages[index] = _after(context.content, messages[index])


def _after(text: str, message: Message) -> Message:
    """Return a message with text inserted before its content."""
    content = _join_parts([text, message.content])
    return replace(message, content=content, images=shifted(message.images, len(content) - len(message.content)))


def _join_parts(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def schema_prompt(request: Request, system_prompt: str = "") -> str:
    """Return the text that describes the output's schema in the system prompt.

    The text is empty if the prompt omits the schema. The same schema always yields the same text, at the end of the
    system prompt, so that its tokens can be cached. A decoder-enforced schema that permits any object is omitted if
    `system_prompt` or a message of the request mentions JSON, because a second instruction misleads small models.
    """
    output = request.output
    is_in_context = request.context is not None and request.context.includes_schema
    if not output.shown_schema_json or is_in_context or output.schema_in_prompt is SchemaInPrompt.OFF:
        return ""
    if is_schema_left_out(output):
        return ""
    if _is_enforced_object(output):
        texts = (system_prompt, *(message.content for message in request.messages))
        return "" if any(_JSON.search(text) for text in texts) else _AS_OBJECT
    return _shown(output.shown_schema_json)


def is_schema_left_out(output: OutputContract) -> bool:
    """Return whether the schema of an output is omitted from the prompt because of its size."""
    is_auto = output.schema_in_prompt is SchemaInPrompt.AUTO
    return (
        is_auto and output.decoder_constraint and len(_shown(output.shown_schema_json).encode()) > MAX_AUTO_SCHEMA_BYTES
    )


def _is_enforced_object(output: OutputContract) -> bool:
    """Return whether the output's schema permits any object and nothing else, and the decoder enforces it."""
    if output.schema_in_prompt is not SchemaInPrompt.AUTO or not output.decoder_constraint:
        return False
    try:
        schema = parse_json(output.shown_schema_json, is_rewritable=True)
    except JsonTextError:
        return False
    return isinstance(schema, dict) and _without_keys_for_tools(schema) == {"type": "object"}


def _without_keys_for_tools(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in _FOR_TOOLS}


@lru_cache(maxsize=64)
def _shown(schema_json: str) -> str:
    """Return the text that shows a schema to the model: a form if possible, else compact JSON.

    The text is empty if the schema allows any value.
    """
    try:
        schema = parse_json(schema_json, is_rewritable=True)
    except JsonTextError:
        return f"{_AS_SCHEMA}\n{schema_json}"
    if (form := form_of(schema)) is not None:
        return f"{_AS_FORM}\n{form}"
    if isinstance(schema, dict):
        schema = _without_keys_for_tools(schema)
    if schema in ({}, True):
        return ""
    return f"{_AS_SCHEMA}\n{dump_json(schema)}"


def context_message(request: Request, retrieved: Message | None, tools: Sequence[ToolDefinition]) -> Message | None:
    """Return the retrieved context with the offered tools and the output schema, if the policy includes them.

    The tools and the schema are shown even if no context was retrieved. Returns None if the message would be empty.
    """
    role = Role.USER
    if request.context is not None:
        role = request.context.role
    parts: list[str] = []
    if retrieved is not None:
        parts.append(retrieved.content)
    if request.context is not None:
        parts += _included_parts(request.context, request.output, tools)
    if not parts:
        return None
    return Message(role, content="\n\n".join(parts))


def _included_parts(policy: ContextPolicy, output: OutputContract, tools: Sequence[ToolDefinition]) -> list[str]:
    parts: list[str] = []
    if policy.includes_tools and tools:
        parts.append("\n".join(["Tools that can be called:", "", *map(_tool_line, tools)]))
    if policy.includes_schema and output.shown_schema_json:
        parts.append(f"JSON Schema of the answer:\n\n{output.shown_schema_json}")
    return parts


def _tool_line(tool: ToolDefinition) -> str:
    if not tool.description:
        return f"- {tool.name}"
    return f"- {tool.name}: {tool.description}"


def with_prepared(request: Request, prepared: Prepared) -> Request:
    """Return the request for a plan's steps, with the assembled system prompt and the stored conversation."""
    first, *others = request.messages
    if first.role is Role.SYSTEM:
        messages = [first, *_conversation(prepared, others)]
    else:
        messages = _conversation(prepared, request.messages)
    prompt = SystemPrompt(text=prepared.system_prompt, is_assembled=True)
    return replace(request, prompt=prompt, messages=tuple(messages))


def feedback_message(violations: Sequence[str]) -> Message:
    """Return the message that reports the violations to the model."""
    lines = ["Your answer is not right:", *(f"- {violation}" for violation in violations[:20])]
    lines.append("Answer again, and give only the corrected answer.")
    return Message(Role.USER, content="\n".join(lines))


def answer_now_message() -> Message:
    """Return the message that asks the model to answer without another tool call."""
    return Message(Role.USER, content="You have these results already. Answer in words now, without calling a tool.")


def last_user_text(request: Request, history: Sequence[Message]) -> str:
    """Return the user's last message as the query for retrieval; empty if there is no user message."""
    for message in reversed((*history, *request.messages)):
        if message.role is Role.USER and message.is_shown:
            return message.content
    return ""
