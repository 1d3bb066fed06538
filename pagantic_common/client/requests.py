"""Builds SystemRequests from plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import decision_pb2, execution_pb2, plan_pb2
from pagantic_common.client.hints import Choice, Options, apply_options, one_of, several
from pagantic_common.codec.messages import duration_from_proto, message_from_proto, tool_definition_to_proto
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.images import media_type_of
from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode, ToolDefinition, check_message
from pagantic_common.domain.text.json_text import dump_json

Messages = str | Sequence[message_pb2.Message]
# The possible answers; a mapping adds the meaning of each answer for the model.
Answers = Sequence[str | bool] | Mapping[str, str]

STRATEGIES = ("majority", "strict_majority", "unanimity", "field_majority")


ASKED_CHUNKS = 6
ASKED_CLAIMS = 3
AUTO = "auto"  # The client chooses according to the collection's embeddings.
RETRIEVERS = {name.removeprefix("RETRIEVER_"): number for name, number in policy_pb2.Retriever.items() if number}


def chat_request(
    text_or_messages: Messages,
    *,
    session_id: str = "",
    tools: Sequence[str] | None = None,
    client_tools: Sequence[ToolDefinition] = (),
    tool_choice: Choice = None,
    system: str = "",
    **options: Unpack[Options],
) -> execution_pb2.SystemRequest:
    """Make a CHAT request.

    Args:
        text_or_messages: The user's text, or messages that end with a user message or a tool result.
        session_id: Conversation to continue. If empty, no conversation is stored.
        tools: Names of tools that the model may call; None allows every registered tool or, with `client_tools`, no
            registered tool. An empty list allows no tool.
        client_tools: Tools that the caller runs. Their calls are in the response's `tool_calls`.
        tool_choice: "auto", "required", "none", or the name of the tool that must be called.
        system: System prompt.
        options: See Options.
    """
    if tools is not None and not tools and not client_tools:
        if tool_choice not in (None, "", "none"):
            raise ValueError(f"tool_choice is {tool_choice!r}, and tools is empty: no tool can be called")
        tool_choice = ToolChoice(mode=ToolChoiceMode.NONE)
    request = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_CHAT,
        session_id=session_id,
        messages=messages_of(text_or_messages),
        prompt=prompt_of(system),
        tools=several("tools", tools or ()),
        client_tools=[tool_definition_to_proto(tool) for tool in client_tools],
    )
    return apply_options(request, options, tool_choice)


def ask_request(
    collection: str,
    question: str,
    *,
    retriever: str = "bm25",
    max_chunks: int = ASKED_CHUNKS,
    filter: str = "",  # noqa: A002 - the policy's field
    queries: int = 0,
    hypothetical_document: bool = False,
    min_probability: float | None = None,
    slope: float | None = None,
    intercept: float | None = None,
    **options: Unpack[Options],
) -> execution_pb2.SystemRequest:
    """Make a CHAT request that answers from a collection, with citations and without tools.

    Args:
        collection: Name of the collection.
        question: The question.
        retriever: "bm25", "keyword", "vector" or "hybrid"; the last two need a collection with embeddings.
        max_chunks: Maximum number of chunks that the model reads.
        filter: CEL expression over `metadata` and `source`; only documents that satisfy it are searched.
        queries: Number of rewordings of the question by the model to search for in addition; at most 5.
        hypothetical_document: Whether to search for a hypothetical answer by the model, too; needs "vector" or
            "hybrid".
        min_probability: Abstain if the probability that the chunks contain the answer is lower; None skips this check.
        slope: The slope printed by `pagantic calibrate`; needs `min_probability`, where 0 means no limit.
        intercept: The intercept printed with the slope.
        options: See Options; by default an answer has at most 3 claims. `context` is not allowed.
    """
    if options.get("context"):
        raise ValueError(
            "context is made from the collection and the other arguments: for a policy of your own, use "
            "chat_request(question, context=policy, citations=True, tools=[])"
        )
    if min_probability is None and (slope is not None or intercept is not None):
        raise ValueError(
            "slope and intercept calibrate what the model is asked: give min_probability, too, which may be 0"
        )
    if retriever.upper() not in RETRIEVERS:
        choices = ", ".join(name.lower() for name in RETRIEVERS)
        raise ValueError(f"retriever {retriever!r} is not known: use one of {choices}")
    policy = policy_pb2.ContextPolicy(
        collection=collection,
        retriever=RETRIEVERS[retriever.upper()],
        max_chunks=max_chunks,
        filter=filter,
        required=True,
    )
    if queries or hypothetical_document:
        expansion = policy_pb2.QueryExpansion(queries=queries, hypothetical_document=hypothetical_document)
        policy.query_expansion.CopyFrom(expansion)
    if min_probability is not None:
        answerability = policy_pb2.Answerability(min_probability=min_probability, slope=slope, intercept=intercept)
        policy.answerability.CopyFrom(answerability)
    options["context"] = policy
    options.setdefault("citations", contract_pb2.Citations(max_claims=ASKED_CLAIMS))
    return chat_request(question, tools=[], **options)


def user_message(*parts: str | bytes | Path) -> message_pb2.Message:
    """Make a user message from texts and images, in the given order.

    A path names an image file, and bytes are the content of an image: PNG, JPEG, WebP or GIF. Raises ValueError for any
    other content, and OSError for an unreadable file.
    """
    message = message_pb2.Message(role=message_pb2.ROLE_USER)
    for part in parts:
        if isinstance(part, str):
            message.parts.add(text=part)
            message.content += part
            continue
        data = part.read_bytes() if isinstance(part, Path) else part
        media_type = media_type_of(data)
        if not media_type:
            name = repr(str(part)) if isinstance(part, Path) else f"a part of {len(data)} bytes"
            raise ValueError(f"{name} is no PNG, JPEG, WebP or GIF")
        message.parts.add(image=message_pb2.Image(media_type=media_type, data=data))
    return _checked(message)


def system_message(text: str) -> message_pb2.Message:
    """Make a message of instructions, for a conversation that needs more than the request's `system`."""
    return _checked(message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content=text))


def assistant_message(
    text: str = "", *, tool_calls: Sequence[message_pb2.ToolCall] = (), reasoning: str = ""
) -> message_pb2.Message:
    """Make an earlier answer of the model: its text, its tool calls, or both.

    Raises ValueError if a call has no name or no valid id.
    """
    message = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=text, reasoning=reasoning)
    message.tool_calls.extend(tool_calls)
    return _checked(message)


def tool_result(call: message_pb2.ToolCall, content: str) -> message_pb2.Message:
    """Make the message that returns the result of a client tool call to the model.

    Raises ValueError if the call has no name or no valid id.
    """
    message = message_pb2.Message(role=message_pb2.ROLE_TOOL, content=content, tool_call_id=call.id, name=call.name)
    return _checked(message)


def _checked(message: message_pb2.Message) -> message_pb2.Message:
    """Return the message. Raises ValueError if the orchestrator would refuse it."""
    try:
        check_message(message_from_proto(message), 0)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    return message


def structured_request(
    text_or_messages: Messages,
    schema: Mapping[str, Any] | bool | str,
    *,
    tools: Sequence[str] = (),
    system: str = "",
    **options: Unpack[Options],
) -> execution_pb2.SystemRequest:
    """Make a STRUCTURED request.

    Args:
        text_or_messages: The user's text, or messages that end with a user message.
        schema: JSON Schema, as a mapping or as text.
        tools: Names of tools that the model may call before it answers.
        system: System prompt.
        options: See Options.
    """
    request = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_STRUCTURED,
        messages=messages_of(text_or_messages),
        prompt=prompt_of(system),
        output=_contract_of(schema),
        tools=several("tools", tools),
    )
    return apply_options(request, options)


def vote_request(
    text_or_messages: Messages,
    schema: Mapping[str, Any] | bool | str,
    *,
    n: int = 0,
    strategy: str = "majority",
    min_agreement: float = 0.0,
    early_stop: bool = False,
    system: str = "",
    **options: Unpack[Options],
) -> execution_pb2.SystemRequest:
    """Make a REDUNDANT request: a vote among `n` answers in JSON that satisfies `schema`.

    Args:
        text_or_messages: The user's text, or messages that end with a user message.
        schema: JSON Schema, as a mapping or as text.
        n: Number of replicas; 0 selects 3.
        strategy: "majority", "strict_majority", "unanimity" or "field_majority".
        min_agreement: Minimum fraction of `n` that the winner needs.
        early_stop: Whether to stop decoding as soon as the winner is certain. The confidence is then a lower bound.
        system: System prompt.
        options: See Options.
    """
    name = one_of("strategy", strategy, STRATEGIES)
    request = structured_request(text_or_messages, schema, system=system, **options)
    request.mode = execution_pb2.MODE_REDUNDANT
    request.voting.CopyFrom(
        execution_pb2.Voting(
            n=n,
            strategy=execution_pb2.VotingStrategy.Value(f"VOTING_STRATEGY_{name.upper()}"),
            min_agreement=min_agreement,
            early_stop=early_stop,
        )
    )
    return request


def plan_request(
    text_or_messages: Messages,
    steps: Sequence[plan_pb2.Step] | None = None,
    *,
    tools: Sequence[str] = (),
    system: str = "",
    **options: Unpack[Options],
) -> execution_pb2.SystemRequest:
    """Make a PLAN request. If `steps` is None, the planner makes the plan.

    Args:
        text_or_messages: The user's text, or messages that end with a user message.
        steps: Results of `plan_step`. The steps run in order unless a step has `depends_on`.
        tools: Names of tools that the plan may use. An empty list allows the tools that `steps` name. Without steps, it
            allows no tool, but a planner that asks the model may use every registered tool.
        system: System prompt of the infer steps.
        options: See Options.
    """
    request = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_PLAN,
        messages=messages_of(text_or_messages),
        prompt=prompt_of(system),
        tools=several("tools", tools),
    )
    if steps is not None:
        request.plan.CopyFrom(plan_pb2.ExecutionPlan(steps=steps))
    return apply_options(request, options)


def plan_step(
    name: str,
    kind: str,
    *,
    depends_on: Sequence[str] = (),
    schema: Mapping[str, Any] | bool | str | None = None,
    **parameters: Any,
) -> plan_pb2.Step:
    """Make a step of a plan.

    Args:
        name: Unique within the plan.
        kind: "infer", "tool", "validate", "retrieve", "rerank", "wait", or a kind that the deployment registered.
        depends_on: Names of the steps that this step needs. If no step depends on another, each step receives the
            output of the previous step.
        schema: JSON Schema of the step's output, for infer and validate steps.
        parameters: The parameters of the step's kind, such as `prompt`, `tool`, `arguments`, `collection`.
    """
    step = plan_pb2.Step(name=name, kind=kind, depends_on=several("depends_on", depends_on))
    if parameters:
        step.parameters_json = dump_json(parameters)
    if schema is not None:
        step.output.CopyFrom(_contract_of(schema))
    return step


def predicate(statement: str, *, name: str = "") -> decision_pb2.Question:
    """Make a question that asks whether a statement is true of the input."""
    return decision_pb2.Question(name=name, instructions=statement, predicate=decision_pb2.PredicateQuestion())


def choice(question: str, options: Answers, *, name: str = "") -> decision_pb2.Question:
    """Make a question that asks for one of 2 to 255 options.

    The options are texts or truth values, or texts with their meanings.
    """
    result = decision_pb2.Question(name=name, instructions=question)
    for value, description in _described("options", options):
        option = result.choice.options.add(description=description)
        if isinstance(value, bool):
            option.flag = value
        else:
            option.text = value
    return result


def score(question: str, levels: Sequence[str] | Mapping[str, str], *, name: str = "") -> decision_pb2.Question:
    """Make a question that asks for a level on a scale of 2 to 255 levels.

    Levels are in ascending order, and the lowest has value 0. A mapping adds the meaning of each level.
    """
    result = decision_pb2.Question(name=name, instructions=question)
    for label, description in _described("levels", levels):
        result.score.levels.add(label=str(label), description=description)
    return result


def decide_request(
    text_or_messages: Messages,
    questions: Sequence[decision_pb2.Question | str],
    *,
    min_confidence: float = 0.0,
    min_label_mass: float = 0.0,
    calibration: str = "",
    system: str = "",
    **options: Unpack[Options],
) -> execution_pb2.SystemRequest:
    """Make a DECIDE request.

    Args:
        text_or_messages: The input, as a text or as messages, which the model sees quoted.
        questions: Results of `predicate`, `choice` and `score`. A text is short for a predicate.
        min_confidence: A decision with a lower confidence is an abstention.
        min_label_mass: A decision is an abstention if the total probability of its labels is lower.
        calibration: Name of a calibration of the deployment. If empty, no calibration applies.
        system: System prompt.
        options: See Options; a decision accepts only `request_id`, `model` and `timeout_s`.
    """
    if isinstance(questions, str):
        raise TypeError(f"questions is the text {questions!r}: it must be a list of questions")
    normalized_questions = [predicate(question) if isinstance(question, str) else question for question in questions]
    request = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_DECIDE,
        messages=messages_of(text_or_messages),
        prompt=prompt_of(system),
        decisions=decision_pb2.Decisions(
            questions=normalized_questions,
            min_confidence=min_confidence,
            min_label_mass=min_label_mass,
            calibration=calibration,
        ),
    )
    return apply_options(request, options)


def _described(name: str, answers: Answers) -> list[tuple[str | bool, str]]:
    if isinstance(answers, str):
        raise TypeError(f"{name} is the text {answers!r}: it must be a list of answers")
    if isinstance(answers, Mapping):
        return list(answers.items())
    return [(answer, "") for answer in answers]


def timeout_of(request: execution_pb2.SystemRequest) -> float:
    """Return the timeout in the request's hints, in seconds, or 0 if the hints have no timeout."""
    return duration_from_proto(request.hints.timeout)


def _contract_of(schema: Mapping[str, Any] | bool | str) -> contract_pb2.OutputContract:
    if not isinstance(schema, str):
        schema = dump_json(schema)
    return contract_pb2.OutputContract(schema_json=schema)


def messages_of(text_or_messages: Messages) -> Sequence[message_pb2.Message]:
    """Return a sequence of messages. A text becomes a user message."""
    if isinstance(text_or_messages, str):
        return [message_pb2.Message(role=message_pb2.ROLE_USER, content=text_or_messages)]
    return text_or_messages


def prompt_of(system: str) -> execution_pb2.SystemPrompt | None:
    """Return a system prompt, or None if the text is empty."""
    if not system:
        return None
    return execution_pb2.SystemPrompt(text=system)
