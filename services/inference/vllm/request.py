"""Decodes the requests of `vllm.grpc.engine`. Rejects unsupported fields by name."""

from __future__ import annotations

from google.protobuf.message import Message
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.engine_text import GrammarError, engine_text_of_values
from services.inference.convert import value_if_set
from services.inference.core.generation import (
    Constraint,
    ConstraintKind,
    InferenceRequest,
    Prompt,
    Sampling,
    TokenPrompt,
)
from services.inference.core.request_check import MAX_TOP_LOGPROBS

_UNSUPPORTED = ("kv_transfer_params", "kv_transfer_params_json", "mm_inputs", "extra_mm_inputs", "media_refs")
_UNSUPPORTED_SAMPLING = ("min_tokens", "ignore_eos", "prompt_logprobs", "truncate_prompt_tokens", "structural_tag")
_CONSTRAINT_KINDS = {
    "json_schema": ConstraintKind.SCHEMA,
    "regex": ConstraintKind.REGEX,
    "grammar": ConstraintKind.GBNF,
}
_ANY_OBJECT = Constraint(ConstraintKind.SCHEMA, '{"type":"object"}')


def request_from_proto(request: pb.GenerateRequest) -> InferenceRequest:
    """Decode a request, whose deltas will include tokens.

    Raises InvalidRequest if there is no prompt or a field is not supported, and InvalidRequest
    (CONSTRAINT_GRAMMAR_INVALID) for an empty choice. Fields for the gateway's detokenization have no effect, because
    the answer consists of tokens.
    """
    params = request.sampling_params
    _refuse_fields(request, _UNSUPPORTED, "")
    _refuse_fields(params, _UNSUPPORTED_SAMPLING, "sampling_params.")
    if request.data_parallel_rank:
        raise InvalidRequest(f"data_parallel_rank is {request.data_parallel_rank}: this service has rank 0 alone")
    return InferenceRequest(
        prompt=_prompt_of(request),
        sampling=_sampling_of(params),
        seed=value_if_set(params, "seed"),
        constraint=_constraint_of(params),
        max_tokens=_max_tokens_of(params),
        stop=tuple(params.stop),
        stop_tokens=frozenset(params.stop_token_ids),
        candidate_count=params.n or 1,
        top_logprobs=_top_logprobs_of(params),
        reports_tokens=True,
    )


def _refuse_fields(message: Message, names: tuple[str, ...], place: str) -> None:
    set_fields = {field.name for field, _value in message.ListFields()}
    for name in names:
        if name in set_fields:
            raise InvalidRequest(f"{place}{name} is set, which this service does not support: leave it out")


def _prompt_of(request: pb.GenerateRequest) -> Prompt:
    match request.WhichOneof("input"):
        case None:
            raise InvalidRequest("input is not set: send tokenized or text")
        case "tokenized":
            return TokenPrompt(tuple(request.tokenized.input_ids))
        case _:
            return request.text


def _sampling_of(params: pb.SamplingParams) -> Sampling:
    """Decode the sampling parameters.

    In fields where vLLM treats zero as unset, zero selects vLLM's default.
    """
    temperature = value_if_set(params, "temperature")
    if temperature is None:
        temperature = 1.0
    return Sampling(
        temperature=temperature,
        top_p=params.top_p or 1.0,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty or 1.0,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
    )


def _max_tokens_of(params: pb.SamplingParams) -> int:
    if value_if_set(params, "max_tokens") == 0:
        raise InvalidRequest("sampling_params.max_tokens is 0: ask for at least one token, or leave it out")
    return params.max_tokens


def _top_logprobs_of(params: pb.SamplingParams) -> int | None:
    count: int | None = value_if_set(params, "logprobs")
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"sampling_params.logprobs is {count}: it must be between 0 and {MAX_TOP_LOGPROBS}")
    return count


def _constraint_of(params: pb.SamplingParams) -> Constraint | None:
    match params.WhichOneof("constraint"):
        case None:
            return None
        case "json_object" if params.json_object:
            return _ANY_OBJECT
        case "json_object":
            return None
        case "choice":
            return _choice_constraint(list(params.choice.choices))
        case kind:
            return Constraint(_CONSTRAINT_KINDS[kind], getattr(params, kind))


def _choice_constraint(choices: list[str]) -> Constraint:
    try:
        return Constraint(ConstraintKind.ENGINE_TEXT, engine_text_of_values(choices))
    except GrammarError as error:
        raise InvalidRequest(
            f"sampling_params.choice cannot be enforced: {error}", code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID
        ) from None
