"""The output of candidates that have sampled the same tokens so far: logits in, tokens and text out.

Theory of operation. `rank` is given the logits that follow the output's last token and says what may come next. Each
candidate draws from that. `accept` takes the token that was drawn and answers with the tokens to decode next: that one
and after it those that the constraint forces, so that a run of forced tokens costs one batch. Where candidates draw
differently, `fork` makes the output of those that go another way.

Invariants:
    1. `output_tokens` never exceeds `max_tokens`.
    2. With a matcher, every token that is given out was accepted by it.
    3. After a finish reason was given, neither `rank` nor `accept` is called again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.inference.core.decoding.sampling import Choices, Logits, adjust_logits, log_probabilities, rank_tokens
from services.inference.core.decoding.text_stream import TextStream
from services.inference.core.generation import FinishReason, Sampling, TokenLogprob

_PENALIZED_PROMPT_TOKENS = 64


class Vocabulary(Protocol):
    """What the core needs to know of a model's tokens."""

    size: int
    end_tokens: frozenset[int]
    control_texts: tuple[str, ...]

    def piece(self, token: int) -> bytes:
        """Bytes of a token; empty for control tokens."""


class Matcher(Protocol):
    """A constraint's progress over one output."""

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with those of tokens that may not come next at -inf."""

    def accept(self, token: int) -> None:
        """Move past a token that the mask allowed."""

    def forced_tokens(self) -> list[int]:
        """Return the tokens that can only come next; they are not accepted yet."""

    def is_complete(self) -> bool:
        """Tell whether the output may end here."""

    def is_stopped(self) -> bool:
        """Tell whether nothing may follow."""

    def fork(self) -> Matcher:
        """Return a matcher with the same progress."""


@dataclass(frozen=True, slots=True)
class Row:
    """What may follow the output, and the log-probabilities of all tokens when they are asked for."""

    choices: Choices
    log_probabilities: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True)
class Step:
    """What one `accept` gave: tokens to decode next, text to show, and why the output ended if it did."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Output:
    """One output; `top_logprobs` None reports no log-probabilities."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        sampling: Sampling,
        max_tokens: int,
        stop: Sequence[str] = (),
        matcher: Matcher | None = None,
        prompt_tokens: Sequence[int] = (),
        top_logprobs: int | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._matcher = matcher
        self._stream = TextStream(stop)
        self._seen: Counter[int] = Counter(prompt_tokens[-_PENALIZED_PROMPT_TOKENS:])
        self._top_logprobs = top_logprobs
        self.output_tokens = 0
        self.constraint_satisfied = False

    @property
    def is_random(self) -> bool:
        """Whether candidates draw numbers at all."""
        return self._sampling.temperature > 0

    def fork(self) -> Output:
        """Return an output that has come as far and goes on by itself."""
        other = Output(
            vocabulary=self._vocabulary,
            sampling=self._sampling,
            max_tokens=self._max_tokens,
            matcher=self._matcher.fork() if self._matcher is not None else None,
            top_logprobs=self._top_logprobs,
        )
        other._stream = self._stream.fork()
        other._seen = self._seen.copy()
        other.output_tokens = self.output_tokens
        return other

    def rank(self, logits: Logits) -> Row:
        """Return what may come next; the logits may be changed in place."""
        log_probs = None if self._top_logprobs is None else log_probabilities(logits)
        adjust_logits(logits, self._sampling, self._seen)
        if self._matcher is not None:
            logits = self._matcher.mask(logits)
        return Row(rank_tokens(logits, self._sampling), log_probs)

    def accept(self, token: int, row: Row) -> Step:
        """Go on with a token that was picked from `row`."""
        if token in self._vocabulary.end_tokens:
            return self._end(FinishReason.STOP, "", ())
        logprobs = self._logprobs(token, row)
        tokens = [token]
        self._take(token)
        # Log-probabilities of forced tokens would need logits that nobody computes: then they are picked one by one.
        if self._matcher is not None and self._top_logprobs is None:
            for forced in self._matcher.forced_tokens():
                if self.output_tokens >= self._max_tokens or forced in self._vocabulary.end_tokens:
                    break
                self._take(forced)
                tokens.append(forced)
        text = self._stream.feed(b"".join(self._vocabulary.piece(token) for token in tokens))
        if self._stream.is_stopped or (self._matcher is not None and self._matcher.is_stopped()):
            return self._end(FinishReason.STOP, text, logprobs)
        if self.output_tokens >= self._max_tokens:
            return self._end(FinishReason.LENGTH, text, logprobs)
        return Step(tuple(tokens), text, logprobs=logprobs)

    def _take(self, token: int) -> None:
        if self._matcher is not None:
            self._matcher.accept(token)
        self.output_tokens += 1
        self._seen[token] += 1

    def _end(self, reason: FinishReason, text: str, logprobs: tuple[TokenLogprob, ...]) -> Step:
        self.constraint_satisfied = (
            self._matcher is not None and self._matcher.is_complete() and not self._stream.is_stopped
        )
        return Step((), text + self._stream.finish(), reason, logprobs)

    def _logprobs(self, token: int, row: Row) -> tuple[TokenLogprob, ...]:
        known = row.log_probabilities
        if known is None:
            return ()
        count = self._top_logprobs or 0
        best = np.argsort(-known, kind="stable")[:count] if count else ()
        top = tuple(TokenLogprob(int(t), self._vocabulary.piece(int(t)), float(known[t])) for t in best)
        return (TokenLogprob(token, self._vocabulary.piece(token), float(known[token]), top),)
