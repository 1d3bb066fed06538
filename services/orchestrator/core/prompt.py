"""The messages that the model sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagantic_common.domain.messages import Message, Role
from services.orchestrator.core.request import Request


def assemble_messages(
    request: Request, history: Sequence[Message], context: Message | None, transcript: Sequence[Message]
) -> tuple[Message, ...]:
    """Join system prompt, stored conversation, the new turn and what happened in it.

    The context message goes after the system prompt, or immediately before the last user message of the turn.
    """
    given = list(request.messages)
    first = given.pop(0).content if given[0].role is Role.SYSTEM else ""
    schema = ""
    if request.output.schema_json and not request.output.decoder_constraint:
        schema = f"Answer with JSON that satisfies this JSON Schema:\n{request.output.schema_json}"
    system = "\n\n".join(part for part in (request.prompt.render(), first, schema) if part)
    messages = [Message(Role.SYSTEM, content=system)] if system else []
    turn = [*history, *given]
    if context is not None:
        if request.context is not None and request.context.is_after_system:
            turn.insert(0, context)
        else:
            asked = [index for index, message in enumerate(turn) if message.role is Role.USER]
            turn.insert(asked[-1] if asked else len(turn), context)
    return (*messages, *turn, *transcript)


def with_history(request: Request, history: Sequence[Message]) -> Request:
    """Return the request with the stored conversation before its own messages."""
    first = 1 if request.messages[0].role is Role.SYSTEM else 0
    return replace(request, messages=(*request.messages[:first], *history, *request.messages[first:]))


def feedback_message(violations: Sequence[str]) -> Message:
    """Return what the model is told when its output is wrong."""
    lines = ["Your answer is not right:", *(f"- {violation}" for violation in violations[:20])]
    lines.append("Answer again, and give only the corrected answer.")
    return Message(Role.USER, content="\n".join(lines))


def last_user_text(request: Request, history: Sequence[Message]) -> str:
    """Return the last thing that the user said, which is what context is retrieved for."""
    asked = [message.content for message in (*history, *request.messages) if message.role is Role.USER]
    return asked[-1] if asked else ""
