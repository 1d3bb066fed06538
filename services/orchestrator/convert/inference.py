"""What an inference says <-> proto."""

from __future__ import annotations

from pagantic.inference.v1 import generation_pb2
from services.orchestrator.core.model.request import Reasoning
from services.orchestrator.core.model.response import FinishReason, TokenLogprob

_FINISH_PREFIX = "FINISH_REASON_"
_BYTES = "latin-1"
_REASONING_PREFIX = "REASONING_MODE_"


def reasoning_to_proto(reasoning: Reasoning) -> generation_pb2.Reasoning:
    """Encode how a reasoning model is to think."""
    mode = generation_pb2.ReasoningMode.Value(_REASONING_PREFIX + reasoning.mode)
    return generation_pb2.Reasoning(mode=mode, max_tokens=reasoning.max_tokens)


def finish_reason_to_proto(reason: FinishReason | None) -> generation_pb2.FinishReason.ValueType:
    """Encode a finish reason; None is not set."""
    if reason is None:
        return generation_pb2.FINISH_REASON_UNSPECIFIED
    return generation_pb2.FinishReason.Value(_FINISH_PREFIX + reason.name)


def finish_reason_from_proto(value: generation_pb2.FinishReason.ValueType) -> FinishReason:
    """Decode a finish reason; what is not known is an error."""
    name = generation_pb2.FinishReason.Name(value).removeprefix(_FINISH_PREFIX)
    return FinishReason[name] if name in FinishReason.__members__ else FinishReason.ERROR


def logprob_to_proto(logprob: TokenLogprob) -> generation_pb2.TokenLogprob:
    """Encode a token's log-probability and its alternatives'."""
    return generation_pb2.TokenLogprob(
        token=logprob.token,
        piece=logprob.piece.encode(_BYTES),
        logprob=logprob.logprob,
        top=[logprob_to_proto(other) for other in logprob.top],
    )


def logprob_from_proto(logprob: generation_pb2.TokenLogprob) -> TokenLogprob:
    """Decode a token's log-probability and its alternatives'."""
    top = tuple(logprob_from_proto(other) for other in logprob.top)
    return TokenLogprob(logprob.token, logprob.piece.decode(_BYTES), logprob.logprob, top)
