"""Encodes the events of an inference, the models and their load as responses of `vllm.grpc.engine`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from services.inference.app.workload import Load
from services.inference.core.generation import CandidateEnd, Delta, Event, FinishReason, Started, TokenLogprob

_FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.TOOL: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
}


@dataclass(slots=True)
class _Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_ended: bool = False


class ResponseEncoder:
    """Encodes the events of one inference, in order.

    Args:
        candidate_count: The number of candidates.
        streams: Whether tokens are sent as they arrive. The last message of a candidate always has all its tokens.
            Without streaming, it also has all its log-probabilities.
    """

    def __init__(self, *, candidate_count: int, streams: bool) -> None:
        self._streams = streams
        self._answers = [_Answer() for _ in range(candidate_count)]
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def encode(self, event: Event) -> Iterator[pb.GenerateResponse]:
        """Yield the responses for the next event."""
        match event:
            case Started():
                self._prompt_tokens = event.prompt_tokens
                self._cached_tokens = event.cached_prompt_tokens
            case Delta():
                answer = self._answers[event.candidate_index]
                answer.tokens += event.tokens
                if not self._streams:
                    answer.logprobs += event.logprobs
                elif event.tokens:
                    yield pb.GenerateResponse(chunk=self._chunk(event))
            case CandidateEnd():
                yield pb.GenerateResponse(complete=self._complete(event))

    def encode_abort(self) -> Iterator[pb.GenerateResponse]:
        """Yield the last responses of an inference that was aborted."""
        for index, answer in enumerate(self._answers):
            if not answer.is_ended:
                end = CandidateEnd(index, FinishReason.CANCELLED, len(answer.tokens))
                yield pb.GenerateResponse(complete=self._complete(end))

    def _chunk(self, delta: Delta) -> pb.GenerateStreamChunk:
        return pb.GenerateStreamChunk(
            token_ids=delta.tokens,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(delta.tokens),
            cached_tokens=self._cached_tokens,
            output_logprobs=_logprobs_to_proto(delta.logprobs),
            index=delta.candidate_index,
        )

    def _complete(self, end: CandidateEnd) -> pb.GenerateComplete:
        answer = self._answers[end.candidate_index]
        answer.is_ended = True
        complete = pb.GenerateComplete(
            output_ids=answer.tokens,
            finish_reason=_FINISH_REASONS[end.finish_reason],
            prompt_tokens=self._prompt_tokens,
            completion_tokens=end.output_tokens,
            cached_tokens=self._cached_tokens,
            output_logprobs=_logprobs_to_proto(answer.logprobs),
            index=end.candidate_index,
        )
        match end.matched_stop:
            case int():
                complete.matched_token_id = end.matched_stop
            case str():
                complete.matched_stop_str = end.matched_stop
        return complete


def load_to_proto(load: Load) -> pb.SchedulerLoad:
    """Encode the load of the service."""
    return pb.SchedulerLoad(
        num_running_reqs=load.running_sequences,
        num_waiting_reqs=load.queued_requests,
        num_total_reqs=load.running_sequences + load.queued_requests,
        num_used_tokens=load.kv_used_tokens,
        max_total_num_tokens=load.kv_capacity_tokens,
        token_usage=load.kv_used_ratio,
        max_running_requests=load.sequence_capacity,
    )


def _logprobs_to_proto(logprobs: Sequence[TokenLogprob]) -> pb.OutputLogProbs | None:
    if not logprobs:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[entry.logprob for entry in logprobs],
        token_ids=[entry.token for entry in logprobs],
        top_logprobs=[_top_to_proto(entry.top) for entry in logprobs],
    )


def _top_to_proto(top: Sequence[TokenLogprob]) -> pb.TopLogProbs:
    return pb.TopLogProbs(values=[other.logprob for other in top], token_ids=[other.token for other in top])
