"""The messages that the model sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pagantic_common.domain.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from services.orchestrator.core.conversation.schema_form import form_of
from services.orchestrator.core.model.contract import OutputContract, SchemaInPrompt
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Request, SystemPrompt

MAX_AUTO_SCHEMA_BYTES = 8 * 1024
_AS_FORM = "Answer with JSON in this form:"
_AS_SCHEMA = "Answer with JSON that satisfies this JSON Schema:"
_FOR_TOOLS = frozenset({"$schema", "$id", "$comment"})


def assemble_messages(request: Request, prepared: Prepared, transcript: Sequence[Message]) -> tuple[Message, ...]:
    """Join system prompt, stored conversation, the new turn and what happened in it.

    The context message goes after the system prompt, or immediately before the last user message of the turn.
    """
    given = list(request.messages)
    first = given.pop(0).content if given[0].role is Role.SYSTEM else ""
    system = "\n\n".join(part for part in (prepared.system_prompt, first, schema_prompt(request)) if part)
    messages = [Message(Role.SYSTEM, content=system)] if system else []
    turn = [*prepared.history, *given]
    context = prepared.context_message
    if context is not None:
        if request.context is not None and request.context.is_after_system:
            turn.insert(0, context)
        else:
            asked = [index for index, message in enumerate(turn) if message.role is Role.USER]
            turn.insert(asked[-1] if asked else len(turn), context)
    return (*messages, *turn, *transcript)


def schema_prompt(request: Request) -> str:
    """Return what the model is told of the output's schema; empty when it is not to see it.

    The same schema gives the same text, at the end of the system prompt, so that its tokens are cached.
    """
    output = request.output
    is_in_context = request.context is not None and request.context.includes_schema
    if not output.schema_json or is_in_context or output.schema_in_prompt is SchemaInPrompt.OFF:
        return ""
    return "" if is_schema_left_out(output) else _shown(output.schema_json)


def is_schema_left_out(output: OutputContract) -> bool:
    """Tell whether a schema is too large to be shown unless the request says so."""
    is_auto = output.schema_in_prompt is SchemaInPrompt.AUTO
    return is_auto and output.decoder_constraint and len(_shown(output.schema_json).encode()) > MAX_AUTO_SCHEMA_BYTES


@lru_cache(maxsize=64)
def _shown(schema_json: str) -> str:
    """Return a schema as the model reads it: as a form, else as compact JSON; empty when it allows anything."""
    try:
        schema = parse_json(schema_json, is_rewritable=True)
    except JsonTextError:
        return f"{_AS_SCHEMA}\n{schema_json}"
    if (form := form_of(schema)) is not None:
        return f"{_AS_FORM}\n{form}"
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key not in _FOR_TOOLS}
    return f"{_AS_SCHEMA}\n{dump_json(schema)}" if schema not in ({}, True) else ""


def context_message(request: Request, retrieved: Message | None, tools: Sequence[ToolDefinition]) -> Message | None:
    """Return what was retrieved with the offered tools and the output schema where the policy includes them.

    They are told also when nothing was retrieved. None when there is nothing to tell.
    """
    policy = request.context
    parts = [retrieved.content] if retrieved is not None else []
    if policy is not None and policy.includes_tools and tools:
        lines = [f"- {tool.name}: {tool.description}" if tool.description else f"- {tool.name}" for tool in tools]
        parts.append("\n".join(["Tools that can be called:", "", *lines]))
    if policy is not None and policy.includes_schema and request.output.schema_json:
        parts.append(f"JSON Schema of the answer:\n\n{request.output.schema_json}")
    return Message(Role.SYSTEM, content="\n\n".join(parts)) if parts else None


def with_prepared(request: Request, prepared: Prepared) -> Request:
    """Return the request as a plan's steps see it: with its prompt assembled and the stored conversation in it."""
    first = 1 if request.messages[0].role is Role.SYSTEM else 0
    return replace(
        request,
        prompt=SystemPrompt(text=prepared.system_prompt, is_assembled=True),
        messages=(*request.messages[:first], *prepared.history, *request.messages[first:]),
    )


def feedback_message(violations: Sequence[str]) -> Message:
    """Return what the model is told when its output is wrong."""
    lines = ["Your answer is not right:", *(f"- {violation}" for violation in violations[:20])]
    lines.append("Answer again, and give only the corrected answer.")
    return Message(Role.USER, content="\n".join(lines))


def answer_now_message() -> Message:
    """Return what the model is told when it may call no more tools."""
    return Message(Role.USER, content="You have these results already. Answer in words now, without calling a tool.")


def last_user_text(request: Request, history: Sequence[Message]) -> str:
    """Return the last thing that the user said, which is what context is retrieved for."""
    asked = [message.content for message in (*history, *request.messages) if message.role is Role.USER]
    return asked[-1] if asked else ""
