"""Builds SystemRequests from what a Python caller has at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.messages import tool_choice_to_proto
from pagantic_common.domain.json_text import dump_json
from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode

Messages = str | Sequence[message_pb2.Message]


class Hints(TypedDict, total=False):
    """ExecutionHints as keywords; what is left out is the system's default. `options` go to the engine unread."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    max_tool_rounds: int
    model: str
    options: Mapping[str, Any]


def chat_request(
    text_or_messages: Messages,
    *,
    session_id: str = "",
    tools: Sequence[str] | None = None,
    tool_choice: str | ToolChoice | None = None,
    system: str = "",
    **hints: Unpack[Hints],
) -> execution_pb2.SystemRequest:
    """Make a CHAT request.

    Args:
        text_or_messages: The user's words, or messages of which the last is the user's or a tool result.
        session_id: Conversation to go on with; empty stores none.
        tools: Names the model may call; None is all that are registered, an empty list is none.
        tool_choice: "auto", "required", "none", or the name of the tool that must be called.
        system: System prompt.
        hints: See Hints.
    """
    if tools is not None and not tools:
        tool_choice = ToolChoice(mode=ToolChoiceMode.NONE)
    return execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_CHAT,
        session_id=session_id,
        messages=_messages_of(text_or_messages),
        prompt=_prompt_of(system),
        tools=tools or (),
        hints=_hints_of(hints, tool_choice),
    )


def structured_request(
    text_or_messages: Messages, schema: Mapping[str, Any] | str, *, system: str = "", **hints: Unpack[Hints]
) -> execution_pb2.SystemRequest:
    """Make a STRUCTURED request; `schema` is a JSON Schema, as a mapping or as text."""
    schema_json = schema if isinstance(schema, str) else dump_json(dict(schema))
    return execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_STRUCTURED,
        messages=_messages_of(text_or_messages),
        prompt=_prompt_of(system),
        output=contract_pb2.OutputContract(schema_json=schema_json),
        hints=_hints_of(hints, None),
    )


def vote_request(
    text_or_messages: Messages,
    schema: Mapping[str, Any] | str,
    *,
    n: int = 0,
    strategy: str = "majority",
    min_agreement: float = 0.0,
    early_stop: bool = False,
    system: str = "",
    **hints: Unpack[Hints],
) -> execution_pb2.SystemRequest:
    """Make a REDUNDANT request: a vote of `n` answers, 0 being 3, on JSON that satisfies `schema`.

    Args:
        text_or_messages: The user's words, or messages of which the last is the user's.
        schema: JSON Schema, as a mapping or as text.
        n: Number of replicas.
        strategy: "majority", "strict_majority", "unanimity" or "field_majority".
        min_agreement: Least fraction of n that the winner needs.
        early_stop: Stop decoding once the winner is certain; confidence is then a lower bound.
        system: System prompt.
        hints: See Hints.
    """
    request = structured_request(text_or_messages, schema, system=system, **hints)
    request.mode = execution_pb2.MODE_REDUNDANT
    request.voting.CopyFrom(
        execution_pb2.Voting(
            n=n,
            strategy=execution_pb2.VotingStrategy.Value(f"VOTING_STRATEGY_{strategy.upper()}"),
            min_agreement=min_agreement,
            early_stop=early_stop,
        )
    )
    return request


def _messages_of(text_or_messages: Messages) -> Sequence[message_pb2.Message]:
    if isinstance(text_or_messages, str):
        return [message_pb2.Message(role=message_pb2.ROLE_USER, content=text_or_messages)]
    return text_or_messages


def _prompt_of(system: str) -> execution_pb2.SystemPrompt | None:
    return execution_pb2.SystemPrompt(text=system) if system else None


def _hints_of(hints: Hints, tool_choice: str | ToolChoice | None) -> execution_pb2.ExecutionHints:
    options = hints.get("options")
    encoded = execution_pb2.ExecutionHints(
        max_tokens=hints.get("max_tokens", 0),
        temperature=hints.get("temperature"),
        top_p=hints.get("top_p"),
        seed=hints.get("seed"),
        max_tool_rounds=hints.get("max_tool_rounds", 0),
        model=hints.get("model", ""),
        options_json=dump_json(dict(options)) if options else "",
    )
    if tool_choice:
        encoded.tool_choice.CopyFrom(tool_choice_to_proto(_choice_of(tool_choice)))
    return encoded


def _choice_of(choice: str | ToolChoice) -> ToolChoice:
    if isinstance(choice, ToolChoice):
        return choice
    if choice in tuple(ToolChoiceMode):
        return ToolChoice(mode=ToolChoiceMode(choice))
    return ToolChoice(tool_name=choice)
