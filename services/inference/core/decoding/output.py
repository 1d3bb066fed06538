"""Turns logits into the tokens and the text of candidates that have sampled the same tokens so far.

Theory of operation. `rank` takes the logits after the output's last token and returns the tokens that may come next.
Each candidate draws from these tokens. `accept` takes the drawn token and returns the tokens to decode next. These are
the drawn token and the tokens that the constraint forces after it, so a run of forced tokens costs one batch. When
candidates draw different tokens, `fork` creates the outputs of the new branches. `TextStream` turns the bytes of tokens
into text.

Invariants:
    1. `output_tokens` never exceeds `max_tokens`.
    2. The matcher of a constrained output has accepted every token that the output returns.
    3. After a finish reason, neither `rank` nor `accept` is called again.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.errors import InvalidRequest
from services.inference.core.decoding.sampling import Choices, Logits, adjust_logits, log_probabilities, rank_tokens
from services.inference.core.generation import FinishReason, Sampling, TokenLogprob

_PENALIZED_PROMPT_TOKENS = 64


class TextStream:
    """Turns the bytes of tokens into text to show, as early as possible.

    Invariants:
        1. Shown text never changes and contains no part of a stop string.
        2. Characters are shown whole; invalid bytes become U+FFFD.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self.found_stop = ""

    @property
    def is_stopped(self) -> bool:
        """Whether the text contained a stop string. `found_stop` is that stop string."""
        return bool(self.found_stop)

    def fork(self) -> TextStream:
        """Return an independent copy of this stream with the same text so far."""
        other = TextStream(self._stop)
        other._decoder.setstate(self._decoder.getstate())
        other._held = self._held
        other.found_stop = self.found_stop
        return other

    def feed(self, data: bytes) -> str:
        """Read the bytes of the next tokens and return the text that can be shown now."""
        text = self._decoder.decode(data)
        if not self._stop:
            return text
        self._held += text
        return self._release(at_end=False)

    def finish(self) -> str:
        """Return the rest of the text at the end of the output."""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(at_end=True)

    def _release(self, *, at_end: bool) -> str:
        """Return the held text up to a stop string, or up to a tail that may begin a stop string."""
        if self.found_stop:
            return ""
        cut = len(self._held)
        matches = [(position, stop) for stop in self._stop if (position := self._held.find(stop)) >= 0]
        if matches:
            cut, self.found_stop = min(matches)
        elif not at_end:
            cut -= self._held_back()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _held_back(self) -> int:
        """Return the length of the longest tail that may begin a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(longest + 1, min(len(stop), len(self._held) + 1)):
                if self._held.endswith(stop[:size]):
                    longest = size
        return longest


class Vocabulary(Protocol):
    """The tokens of a model."""

    size: int
    end_tokens: frozenset[int]
    control_texts: tuple[str, ...]

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token, or no bytes for a control token."""


class Matcher(Protocol):
    """Tracks a constraint's progress over one output."""

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with every excluded token set to -inf."""

    def accept(self, token: int) -> None:
        """Advance past a token that the mask allowed."""

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next, without accepting them."""

    def is_complete(self) -> bool:
        """Return whether the output may end here."""

    def is_stopped(self) -> bool:
        """Return whether the output must end here."""

    def fork(self) -> Matcher:
        """Return a matcher with the same progress."""


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens that may follow the output, and the log-probabilities of all tokens if requested."""

    choices: Choices
    log_probabilities: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one `accept`: the new tokens, the text to show, and the finish reason if the output ended.

    The tokens are decoded next unless the output has ended. A token that ends an output is not part of the output.
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Output(Protocol):
    """The output of candidates that have sampled the same tokens so far."""

    output_tokens: int
    constraint_satisfied: bool
    matched_stop: str | int | None

    @property
    def is_random(self) -> bool:
        """Whether the next token is sampled at random rather than chosen greedily."""

    def fork(self) -> Output:
        """Return an independent copy of this output with the same tokens so far."""

    def rank(self, logits: Logits) -> Row:
        """Return the tokens that may come next. May change the logits in place."""

    def accept(self, token: int, row: Row) -> Step:
        """Continue with a token that was picked from `row`."""


class SampledOutput:
    """An output whose tokens are sampled. If `top_logprobs` is None, no log-probabilities are reported.

    A token in `stop_tokens` ends the output. `matched_stop` is the stop token or stop string that ended the output.
    """

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        sampling: Sampling,
        max_tokens: int,
        stop: Sequence[str] = (),
        stop_tokens: frozenset[int] = frozenset(),
        matcher: Matcher | None = None,
        prompt_tokens: Sequence[int] = (),
        top_logprobs: int | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._matcher = matcher
        self._stream = TextStream(stop)
        self._stop_tokens = stop_tokens
        self._end_tokens = vocabulary.end_tokens | stop_tokens
        self._seen: Counter[int] = Counter(prompt_tokens[-_PENALIZED_PROMPT_TOKENS:])
        self._top_logprobs = top_logprobs
        self.output_tokens = 0
        self.constraint_satisfied = False
        self.matched_stop: str | int | None = None

    @property
    def is_random(self) -> bool:
        """Whether the next token is sampled at random rather than chosen greedily."""
        return self._sampling.temperature > 0

    def fork(self) -> SampledOutput:
        """Return an independent copy of this output with the same tokens so far."""
        other = SampledOutput(
            vocabulary=self._vocabulary,
            sampling=self._sampling,
            max_tokens=self._max_tokens,
            stop_tokens=self._stop_tokens,
            top_logprobs=self._top_logprobs,
        )
        if self._matcher is not None:
            other._matcher = self._matcher.fork()
        other._stream = self._stream.fork()
        other._seen = self._seen.copy()
        other.output_tokens = self.output_tokens
        return other

    def rank(self, logits: Logits) -> Row:
        """Return the tokens that may come next. Changes the logits in place."""
        log_probs = None
        if self._top_logprobs is not None:
            log_probs = log_probabilities(logits)
        adjust_logits(logits, self._sampling, self._seen)
        if self._matcher is not None:
            logits = self._matcher.mask(logits)
        return Row(rank_tokens(logits, self._sampling), log_probs)

    def accept(self, token: int, row: Row) -> Step:
        """Continue with a token that was picked from `row`."""
        if token in self._stop_tokens:
            self.matched_stop = token
        if token in self._end_tokens:
            return self._end(FinishReason.STOP, Step((), ""))
        logprobs: tuple[TokenLogprob, ...] = ()
        if row.log_probabilities is not None:
            logprobs = token_logprobs(self._vocabulary, token, row, self._top_logprobs or 0)
        tokens = [token]
        self._take(token)
        # Log-probabilities of forced tokens need logits, so if log-probabilities are requested, these tokens are drawn
        # one by one.
        if self._matcher is not None and self._top_logprobs is None:
            self._take_forced(self._matcher, tokens)
        text = self._stream.feed(b"".join(map(self._vocabulary.piece, tokens)))
        step = Step(tuple(tokens), text, logprobs=logprobs)
        if self._is_stopped():
            return self._end(FinishReason.STOP, step)
        if self.output_tokens >= self._max_tokens:
            return self._end(FinishReason.LENGTH, step)
        return step

    def resume(self, tokens: Sequence[int], draw: Callable[[], float]) -> str:
        """Begin with the tokens of an earlier decoding, and return their text. Draws as often as that decoding.

        Raises InvalidRequest if this output cannot begin with the tokens, or if a token ends this output.
        """
        position = 0
        while position < len(tokens):
            if self.is_random:
                draw()
            position = self._resume(tokens, position)
        text = self._stream.feed(b"".join(self._vocabulary.piece(token) for token in tokens))
        if self._is_stopped() or self.output_tokens >= self._max_tokens:
            raise InvalidRequest("said_tokens end the answer: nothing is left to say")
        return text

    def _resume(self, tokens: Sequence[int], position: int) -> int:
        """Accept the sampled token at a position and the forced tokens after it; return the position after them."""
        self._take_said(tokens[position])
        position += 1
        if self._matcher is None:
            return position
        for forced in self._matcher.forced_tokens():
            if position == len(tokens) or tokens[position] != forced:
                break
            self._take_said(forced)
            position += 1
        return position

    def _take_said(self, token: int) -> None:
        if token >= self._vocabulary.size or token in self._end_tokens:
            raise InvalidRequest(f"said_tokens has {token}: an answer of this model cannot have this token")
        try:
            self._take(token)
        except InvalidRequest:
            raise InvalidRequest(f"said_tokens has {token} where the constraint does not allow it") from None

    def _is_stopped(self) -> bool:
        if self._stream.found_stop:
            return True
        return self._matcher is not None and self._matcher.is_stopped()

    def _take_forced(self, matcher: Matcher, tokens: list[int]) -> None:
        """Accept the forced tokens up to the limit or the end of the output, and append them to `tokens`."""
        for forced in matcher.forced_tokens():
            if self.output_tokens >= self._max_tokens or forced in self._end_tokens:
                break
            self._take(forced)
            tokens.append(forced)

    def _take(self, token: int) -> None:
        if self._matcher is not None:
            self._matcher.accept(token)
        self.output_tokens += 1
        self._seen[token] += 1

    def _end(self, reason: FinishReason, step: Step) -> Step:
        """Mark the output as ended, and return its last step with the rest of the text."""
        self.constraint_satisfied = (
            self._matcher is not None and self._matcher.is_complete() and not self._stream.is_stopped
        )
        text = step.text + self._stream.finish()
        if self._stream.is_stopped:
            self.matched_stop = self._stream.found_stop
        return replace(step, text=text, finish_reason=reason)


def token_logprobs(vocabulary: Vocabulary, token: int, row: Row, top: int) -> tuple[TokenLogprob, ...]:
    """Return a token's log-probability with the `top` most probable tokens.

    Returns an empty tuple if the row has no log-probabilities.
    """
    logprobs = row.log_probabilities
    if logprobs is None:
        return ()
    best: list[int] = []
    if top:
        best = np.argsort(-logprobs, kind="stable")[:top].tolist()
    alternatives = tuple(TokenLogprob(other, vocabulary.piece(other), float(logprobs[other])) for other in best)
    return (TokenLogprob(token, vocabulary.piece(token), float(logprobs[token]), alternatives),)
