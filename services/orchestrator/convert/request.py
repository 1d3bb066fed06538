"""Decodes a SystemRequest to a Request, and encodes the context policy for the context service."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

from pagantic.common.v1 import message_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.rerank.v1 import ranking_pb2
from pagantic_common.codec.fields import EnumCodec, decode_optional, optional
from pagantic_common.codec.messages import (
    duration_from_proto,
    message_from_proto,
    tool_choice_from_proto,
    tool_definition_from_proto,
)
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.convert.contract import (
    output_from_proto,
    replay_from_proto,
    retry_from_proto,
    rule_from_proto,
    voting_from_proto,
)
from services.orchestrator.convert.decision import decisions_from_proto
from services.orchestrator.convert.inference import REASONING_MODES
from services.orchestrator.convert.plan import plan_from_proto
from services.orchestrator.convert.wait import policy_from_proto
from services.orchestrator.core.model.keys import DEFAULT_ACCOUNT, Account
from services.orchestrator.core.model.request import (
    ExperimentVariant,
    Hints,
    Mode,
    Reasoning,
    ReasoningMode,
    Request,
    SystemPrompt,
    TemplateCall,
    VariantChoice,
)
from services.orchestrator.core.model.retrieval import (
    Answerability,
    ContextPolicy,
    QueryExpansion,
    RankingOptions,
    Retriever,
    ScoreFusion,
    SearchFusion,
    SearchOptions,
    WeightedScorer,
)

SCORE_FUSIONS = EnumCodec(ranking_pb2.ScoreFusion, ScoreFusion, "SCORE_FUSION_", unknown=None)
_MODE_PREFIX = "MODE_"
_MODES = EnumCodec(execution_pb2.Mode, Mode, _MODE_PREFIX, unknown=None)
_KNOWN_MODES = ", ".join(_MODE_PREFIX + mode.value for mode in Mode)
_RETRIEVERS: Mapping[int, Retriever] = {number: Retriever(name) for name, number in policy_pb2.Retriever.items()}
_FUSIONS: Mapping[int, SearchFusion] = {number: SearchFusion(name) for name, number in policy_pb2.Fusion.items()}
_ROLES = frozenset(policy_pb2.ContextRole.values())
_PLACEMENTS = frozenset(policy_pb2.Placement.values())
_TOOL_CHOICES = frozenset(message_pb2.ToolChoiceMode.values())
_SAMPLING: tuple[Literal["top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"], ...] = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def request_from_proto(
    request: execution_pb2.SystemRequest, request_id: str, account: Account = DEFAULT_ACCOUNT
) -> Request:
    """Decode an account's request under this ID.

    Raises InvalidRequest if a mode, a role or another enum value is unknown.
    """
    return Request(
        request_id=request_id,
        session_id=request.session_id,
        trace_id=request.trace_id,
        mode=_required_mode(request.mode),
        messages=tuple(message_from_proto(message) for message in request.messages),
        prompt=_prompt_from_proto(request.prompt),
        hints=_hints_from_proto(request.hints),
        output=output_from_proto(request.output),
        tools=tuple(request.tools),
        context=decode_optional(request, "context", _context_from_proto),
        rules=tuple(rule_from_proto(rule) for rule in request.rules),
        semantic_intent=request.semantic_intent,
        retry=retry_from_proto(request.retry),
        voting=voting_from_proto(request.voting),
        plan=decode_optional(request, "plan", plan_from_proto),
        tenant=account.tenant,
        subject=account.subject,
        client_tools=tuple(tool_definition_from_proto(tool) for tool in request.client_tools),
        tool_policy=policy_from_proto(request.tool_rules),
        is_background=request.background,
        decisions=decode_optional(request, "decisions", decisions_from_proto),
        text_prompt=request.text_prompt,
        choice=VariantChoice(
            decode_optional(request, "variant", _variant_from_proto), takes_part=not request.without_experiments
        ),
        replay=decode_optional(request, "replay", replay_from_proto),
    )


def fingerprint_of(request: execution_pb2.SystemRequest, caller: str = "") -> str:
    """Return the SHA-256 of the payload in hexadecimal. A caller's equal payloads have equal fingerprints.

    The request_id, the trace_id and the metadata are excluded. The fingerprints of different callers differ.
    """
    payload = execution_pb2.SystemRequest()
    payload.CopyFrom(request)
    payload.ClearField("request_id")
    payload.ClearField("trace_id")
    payload.ClearField("metadata")
    digest = hashlib.sha256(payload.SerializeToString(deterministic=True))
    if caller:
        digest.update(f"\0{caller}".encode())
    return digest.hexdigest()


def mode_to_proto(mode: Mode) -> execution_pb2.Mode.ValueType:
    """Encode a mode."""
    return _MODES.to_proto(mode)


def context_to_proto(policy: ContextPolicy) -> policy_pb2.ContextPolicy:
    """Encode a context policy for the context service."""
    return policy_pb2.ContextPolicy(
        retriever=policy_pb2.Retriever.Value(policy.retriever),
        collection=policy.collection,
        max_chunks=policy.max_chunks,
        max_tokens=policy.max_tokens,
        min_score=policy.min_score,
        role=policy_pb2.CONTEXT_ROLE_SYSTEM if policy.is_system else policy_pb2.CONTEXT_ROLE_USER,
        filter=policy.search.filter,
        fusion=policy_pb2.Fusion.Value(policy.search.fusion),
        vector_weight=policy.search.vector_weight,
        smoothing=policy.search.smoothing,
        diversity=policy.search.diversity,
        expansion=policy_pb2.Expansion(neighbours=policy.search.neighbours, section=policy.search.has_section),
    )


def scorer_to_proto(scorer: WeightedScorer) -> ranking_pb2.WeightedScorer:
    """Encode a scorer with its weight for the rerank service."""
    return ranking_pb2.WeightedScorer(scorer=scorer.scorer, weight=scorer.weight, model=scorer.model)


def mode_from_proto(value: int) -> Mode | None:
    """Decode a mode, or return None if it is unset. Raises InvalidRequest if the mode is unknown."""
    mode = _MODES.from_proto(value)
    if mode is None and value != execution_pb2.MODE_UNSPECIFIED:
        raise InvalidRequest(f"there is no mode {value}: use one of {_KNOWN_MODES}")
    return mode


def _required_mode(value: int) -> Mode:
    mode = mode_from_proto(value)
    if mode is None:
        raise InvalidRequest(f"mode is not set: use one of {_KNOWN_MODES}")
    return mode


def template_from_proto(template: execution_pb2.PromptTemplate) -> TemplateCall:
    """Decode the name of a template and the values of its variables."""
    return TemplateCall(template.name, tuple(sorted(template.variables.items())))


def _variant_from_proto(variant: execution_pb2.ExperimentVariant) -> ExperimentVariant:
    return ExperimentVariant(variant.experiment, variant.variant)


def _prompt_from_proto(prompt: execution_pb2.SystemPrompt) -> SystemPrompt:
    match prompt.WhichOneof("source"):
        case "instructions":
            sets = tuple((entry.name, tuple(entry.rules)) for entry in prompt.instructions.sets)
            return SystemPrompt(text=prompt.instructions.base, sets=sets)
        case "template":
            return SystemPrompt(template=template_from_proto(prompt.template))
        case _:
            return SystemPrompt(text=prompt.text)


def _hints_from_proto(hints: execution_pb2.ExecutionHints) -> Hints:
    if hints.tool_choice.mode not in _TOOL_CHOICES:
        raise InvalidRequest(f"hints.tool_choice.mode {hints.tool_choice.mode} is not known")
    return Hints(
        max_tokens=hints.max_tokens,
        timeout_s=duration_from_proto(hints.timeout) or None,
        temperature=optional(hints, "temperature"),
        top_p=optional(hints, "top_p"),
        seed=optional(hints, "seed"),
        tool_choice=tool_choice_from_proto(hints.tool_choice),
        max_tool_rounds=hints.max_tool_rounds,
        model=hints.model,
        options_json=hints.options_json,
        stop=tuple(hints.stop),
        sampling={name: getattr(hints, name) for name in _SAMPLING if hints.HasField(name)},
        logit_bias=dict(hints.logit_bias),
        top_logprobs=optional(hints, "top_logprobs"),
        priority=hints.priority,
        reasoning=_reasoning_from_proto(hints.reasoning),
    )


def _reasoning_from_proto(reasoning: generation_pb2.Reasoning) -> Reasoning:
    mode = REASONING_MODES.from_proto(reasoning.mode)
    if mode is None and reasoning.mode != generation_pb2.REASONING_MODE_UNSPECIFIED:
        raise InvalidRequest(f"hints.reasoning.mode {reasoning.mode} is not known")
    return Reasoning(mode or ReasoningMode.AUTO, reasoning.max_tokens)


def _context_from_proto(policy: policy_pb2.ContextPolicy) -> ContextPolicy:
    if policy.placement not in _PLACEMENTS:
        raise InvalidRequest(f"context.placement {policy.placement} is not known")
    if policy.role not in _ROLES:
        raise InvalidRequest(f"context.role {policy.role} is not known")
    if policy.retriever not in _RETRIEVERS:
        raise InvalidRequest(f"context.retriever {policy.retriever} is not known")
    return ContextPolicy(
        retriever=_RETRIEVERS[policy.retriever],
        collection=policy.collection,
        max_chunks=policy.max_chunks,
        min_score=optional(policy, "min_score"),
        search=_search_from_proto(policy),
        is_after_system=policy.placement == policy_pb2.PLACEMENT_AFTER_SYSTEM,
        scorer=decode_optional(policy, "rerank", _scorer_of),
        top_k=policy.rerank.top_k,
        ranking=_ranking_from_proto(policy.rerank),
        max_tokens=policy.max_tokens,
        includes_tools=policy.include_tools,
        includes_schema=policy.include_schema,
        is_required=policy.required,
        is_system=policy.role == policy_pb2.CONTEXT_ROLE_SYSTEM,
        query_expansion=decode_optional(policy, "query_expansion", _query_expansion_from_proto),
        answerability=decode_optional(policy, "answerability", _answerability_from_proto),
    )


def _query_expansion_from_proto(expansion: policy_pb2.QueryExpansion) -> QueryExpansion:
    return QueryExpansion(expansion.queries, expansion.hypothetical_document, expansion.model)


def _answerability_from_proto(answerability: policy_pb2.Answerability) -> Answerability:
    slope = 1.0
    if answerability.HasField("slope"):
        slope = answerability.slope
    return Answerability(answerability.min_probability, slope, answerability.intercept, answerability.model)


def _search_from_proto(policy: policy_pb2.ContextPolicy) -> SearchOptions:
    if policy.fusion not in _FUSIONS:
        raise InvalidRequest(f"context.fusion {policy.fusion} is not known")
    return SearchOptions(
        filter=policy.filter,
        fusion=_FUSIONS[policy.fusion],
        vector_weight=optional(policy, "vector_weight"),
        smoothing=optional(policy, "smoothing"),
        diversity=policy.diversity,
        neighbours=policy.expansion.neighbours,
        has_section=policy.expansion.section,
    )


def _ranking_from_proto(rerank: policy_pb2.RerankPolicy) -> RankingOptions:
    fusion = SCORE_FUSIONS.from_proto(rerank.fusion)
    if fusion is None and rerank.fusion != ranking_pb2.SCORE_FUSION_UNSPECIFIED:
        raise InvalidRequest(f"context.rerank.fusion {rerank.fusion} is not known")
    return RankingOptions(
        tuple(WeightedScorer(entry.scorer, optional(entry, "weight"), entry.model) for entry in rerank.scorers),
        fusion or ScoreFusion.WEIGHTED,
        rerank.diversity,
        rerank.max_per_source,
    )


def _scorer_of(rerank: policy_pb2.RerankPolicy) -> str:
    return rerank.scorer
