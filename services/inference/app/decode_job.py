"""One request on the engine's thread: prompt, candidates, events. Knows threads only by being called in one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Cancelled, DeadlineExceeded, ErrorCode, Internal
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.usage import TokenUsage
from services.inference.core.generation import (
    CandidateEnd,
    Completed,
    Delta,
    Event,
    FinishReason,
    InferenceRequest,
    Started,
)
from services.inference.core.sampling import Logits
from services.inference.core.sequence import DecodedSequence, Matcher
from services.inference.core.tool_calls import CallWatch
from services.inference.ports import TextEngine


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """A request, ready to decode: its prompt as tokens and what follows from its tools."""

    request: InferenceRequest
    tokens: tuple[int, ...]
    max_tokens: int
    seed: int
    matchers: tuple[Matcher | None, ...]
    tool_names: tuple[str, ...]
    tool_is_enforced: bool
    deadline: Deadline
    is_cancelled: Callable[[], bool]


class EngineThread:
    """The sequence that is in the engine, and how a job extends it. All methods run in the engine's thread."""

    def __init__(self, engine: TextEngine, clock: Clock, new_call_id: Callable[[], str]) -> None:
        self._engine = engine
        self._clock = clock
        self._new_call_id = new_call_id
        self._cached: list[int] = []
        self.output_tokens_total = 0

    @property
    def cached_tokens(self) -> int:
        """Tokens that are in the KV cache."""
        return len(self._cached)

    def run(self, job: DecodeJob, emit: Callable[[Event], None]) -> None:
        """Decode every candidate of a job, looking at cancellation and deadline before each step."""
        cached = self._keep_common_prefix(job.tokens)
        prompt_logits = self._append(job, job.tokens[cached:])
        emit(Started(self._engine.model, len(job.tokens), cached, job.seed))
        counts: list[int] = []
        started_s = self._clock.monotonic_s()
        for index in range(job.request.candidate_count):
            self._truncate(len(job.tokens))
            counts.append(self._decode_candidate(job, index, prompt_logits.copy(), emit))
        usage = TokenUsage(
            prompt_tokens=len(job.tokens),
            cached_prompt_tokens=cached,
            output_tokens=sum(counts),
            context_tokens=len(job.tokens) + max(counts),
            context_window=self._engine.model.context_window,
            decode_seconds=self._clock.monotonic_s() - started_s,
        )
        emit(Completed(usage))

    def _decode_candidate(self, job: DecodeJob, index: int, logits: Logits, emit: Callable[[Event], None]) -> int:
        stream = np.random.Generator(np.random.Philox(key=(job.seed + index) % 2**64))
        sequence = DecodedSequence(
            vocabulary=self._engine.vocabulary,
            sampling=job.request.sampling,
            draw=stream.random,
            max_tokens=job.max_tokens,
            stop=job.request.stop,
            matcher=job.matchers[index],
            prompt_tokens=job.tokens,
        )
        watch = CallWatch(job.tool_names, is_enforced=job.tool_is_enforced)
        while True:
            step = sequence.take(logits)
            if shown := watch.feed(step.text):
                emit(Delta(index, shown))
            if step.finish_reason is not None:
                break
            logits = self._append(job, step.tokens)
        self.output_tokens_total += sequence.output_tokens
        rest, calls = watch.finish()
        if rest:
            emit(Delta(index, rest))
        reason = FinishReason.TOOL if calls else step.finish_reason
        if job.tool_is_enforced and not calls and reason is not FinishReason.LENGTH:
            raise Internal("the model's tool call cannot be read", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)
        tool_calls = tuple(ToolCall(self._new_call_id(), name, arguments) for name, arguments in calls)
        emit(CandidateEnd(index, reason, sequence.output_tokens, tool_calls, sequence.constraint_satisfied))
        return sequence.output_tokens

    def _keep_common_prefix(self, tokens: Sequence[int]) -> int:
        """Cut the cache to what it shares with `tokens`, less the last one, whose logits are needed."""
        pairs = zip(self._cached, tokens[:-1], strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._truncate(shared)
        return shared

    def _truncate(self, length: int) -> None:
        if length < len(self._cached):
            self._engine.truncate(length)
            del self._cached[length:]

    def _append(self, job: DecodeJob, tokens: Sequence[int]) -> Logits:
        """Decode at least one token, in batches, and return the logits of the last."""
        size = self._engine.max_batch_tokens
        for start in range(0, len(tokens), size):
            if job.is_cancelled():
                raise Cancelled("the caller cancelled or went away")
            if job.deadline.has_passed(self._clock.monotonic_s()):
                raise DeadlineExceeded("the deadline passed while decoding")
            batch = tokens[start : start + size]
            logits = self._engine.decode(batch, len(self._cached))
            self._cached.extend(batch)
        return logits


def new_seed() -> int:
    """Return a seed from the operating system's entropy."""
    return int.from_bytes(os.urandom(4), "little")
