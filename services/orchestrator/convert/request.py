"""SystemRequest -> Request, and the parts of a Request that other services are sent."""

from __future__ import annotations

import hashlib
from typing import Literal

from pagantic.common.v1 import message_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.messages import duration_from_proto, message_from_proto, tool_choice_from_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.convert.contract import output_from_proto, rule_from_proto
from services.orchestrator.convert.plan import plan_from_proto
from services.orchestrator.convert.retry import retry_from_proto
from services.orchestrator.core.model.request import (
    ContextPolicy,
    Hints,
    Mode,
    Reasoning,
    ReasoningMode,
    Request,
    SystemPrompt,
    TemplateCall,
)
from services.orchestrator.core.model.voting import DEFAULT_REPLICAS, Strategy, Voting

_MODE_PREFIX = "MODE_"
_STRATEGY_PREFIX = "VOTING_STRATEGY_"
_REASONING_PREFIX = "REASONING_MODE_"
_SAMPLING: tuple[Literal["top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"], ...] = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def request_from_proto(request: execution_pb2.SystemRequest, request_id: str) -> Request:
    """Decode a request whose id is `request_id`; raises InvalidRequest for a mode or role that is not one."""
    return Request(
        request_id=request_id,
        session_id=request.session_id,
        trace_id=request.trace_id,
        mode=_mode_from_proto(request.mode),
        messages=tuple(message_from_proto(message) for message in request.messages),
        prompt=_prompt_from_proto(request.prompt),
        hints=_hints_from_proto(request.hints),
        output=output_from_proto(request.output),
        tools=tuple(request.tools),
        context=_context_from_proto(request.context) if request.HasField("context") else None,
        rules=tuple(rule_from_proto(rule) for rule in request.rules),
        semantic_intent=request.semantic_intent,
        retry=retry_from_proto(request.retry),
        voting=_voting_from_proto(request.voting),
        plan=plan_from_proto(request.plan) if request.HasField("plan") else None,
    )


def fingerprint_of(request: execution_pb2.SystemRequest) -> str:
    """SHA-256 of the payload without its request_id and trace_id, hex: equal payloads give equal fingerprints."""
    payload = execution_pb2.SystemRequest()
    payload.CopyFrom(request)
    payload.ClearField("request_id")
    payload.ClearField("trace_id")
    return hashlib.sha256(payload.SerializeToString(deterministic=True)).hexdigest()


def mode_to_proto(mode: Mode) -> execution_pb2.Mode.ValueType:
    """Encode a mode."""
    return execution_pb2.Mode.Value(_MODE_PREFIX + mode.value)


def context_to_proto(policy: ContextPolicy) -> policy_pb2.ContextPolicy:
    """Encode a context policy for the context service."""
    encoded = policy_pb2.ContextPolicy(
        retriever=policy_pb2.Retriever.Value(policy.retriever),
        collection=policy.collection,
        max_chunks=policy.max_chunks,
        max_tokens=policy.max_tokens,
    )
    if policy.min_score is not None:
        encoded.min_score = policy.min_score
    return encoded


def _mode_from_proto(value: int) -> Mode:
    names: dict[int, str] = {number: name for name, number in execution_pb2.Mode.items()}
    name = names.get(value, "").removeprefix(_MODE_PREFIX)
    if name not in Mode.__members__:
        known = ", ".join(_MODE_PREFIX + mode.value for mode in Mode)
        problem = f"there is no mode {value}" if value else "mode is not set"
        raise InvalidRequest(f"{problem}: use one of {known}")
    return Mode(name)


def _prompt_from_proto(prompt: execution_pb2.SystemPrompt) -> SystemPrompt:
    match prompt.WhichOneof("source"):
        case "instructions":
            sets = tuple((entry.name, tuple(entry.rules)) for entry in prompt.instructions.sets)
            return SystemPrompt(text=prompt.instructions.base, sets=sets)
        case "template":
            variables = tuple(sorted(prompt.template.variables.items()))
            return SystemPrompt(template=TemplateCall(prompt.template.name, variables))
        case _:
            return SystemPrompt(text=prompt.text)


def _hints_from_proto(hints: execution_pb2.ExecutionHints) -> Hints:
    if hints.tool_choice.mode not in message_pb2.ToolChoiceMode.values():
        raise InvalidRequest(f"hints.tool_choice.mode {hints.tool_choice.mode} is not known")
    return Hints(
        max_tokens=hints.max_tokens,
        timeout_s=duration_from_proto(hints.timeout) or None,
        temperature=hints.temperature if hints.HasField("temperature") else None,
        top_p=hints.top_p if hints.HasField("top_p") else None,
        seed=hints.seed if hints.HasField("seed") else None,
        tool_choice=tool_choice_from_proto(hints.tool_choice),
        max_tool_rounds=hints.max_tool_rounds,
        model=hints.model,
        options_json=hints.options_json,
        stop=tuple(hints.stop),
        sampling={name: getattr(hints, name) for name in _SAMPLING if hints.HasField(name)},
        logit_bias=dict(hints.logit_bias),
        top_logprobs=hints.top_logprobs if hints.HasField("top_logprobs") else None,
        priority=hints.priority,
        reasoning=_reasoning_from_proto(hints.reasoning),
    )


def _reasoning_from_proto(reasoning: generation_pb2.Reasoning) -> Reasoning:
    names: dict[int, str] = {number: name for name, number in generation_pb2.ReasoningMode.items()}
    name = names.get(reasoning.mode, "").removeprefix(_REASONING_PREFIX)
    if reasoning.mode and name not in ReasoningMode.__members__:
        raise InvalidRequest(f"hints.reasoning.mode {reasoning.mode} is not known")
    return Reasoning(ReasoningMode.__members__.get(name, ReasoningMode.AUTO), reasoning.max_tokens)


def _context_from_proto(policy: policy_pb2.ContextPolicy) -> ContextPolicy:
    if policy.placement not in policy_pb2.Placement.values():
        raise InvalidRequest(f"context.placement {policy.placement} is not known")
    if policy.retriever not in policy_pb2.Retriever.values():
        raise InvalidRequest(f"context.retriever {policy.retriever} is not known")
    return ContextPolicy(
        retriever=policy_pb2.Retriever.Name(policy.retriever),
        collection=policy.collection,
        max_chunks=policy.max_chunks,
        min_score=policy.min_score if policy.HasField("min_score") else None,
        is_after_system=policy.placement == policy_pb2.PLACEMENT_AFTER_SYSTEM,
        scorer=policy.rerank.scorer if policy.HasField("rerank") else None,
        top_k=policy.rerank.top_k,
        max_tokens=policy.max_tokens,
        includes_tools=policy.include_tools,
        includes_schema=policy.include_schema,
        is_required=policy.required,
    )


def _voting_from_proto(voting: execution_pb2.Voting) -> Voting:
    names: dict[int, str] = {number: name for name, number in execution_pb2.VotingStrategy.items()}
    name = names.get(voting.strategy, "").removeprefix(_STRATEGY_PREFIX)
    if voting.strategy and name not in Strategy.__members__:
        raise InvalidRequest(f"voting.strategy {voting.strategy} is not known")
    return Voting(
        n=voting.n or DEFAULT_REPLICAS,
        strategy=Strategy.__members__.get(name, Strategy.MAJORITY),
        min_agreement=voting.min_agreement,
        early_stop=voting.early_stop,
    )
