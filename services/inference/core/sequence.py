"""One candidate while it is decoded: logits in, tokens and text out.

Theory of operation. `take` is given the logits of the last position of the sequence and answers with the tokens to
decode next: the one that was picked, and after it those that the constraint forces, so that a run of forced tokens
costs one batch. The first pick needs the logits of the prompt's last token.

Invariants:
    1. `output_tokens` never exceeds `max_tokens`.
    2. With a matcher, every token that is given out was accepted by it.
    3. After a finish reason was given, `take` is not called again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.inference.core.generation import FinishReason, Sampling
from services.inference.core.sampling import Logits, adjust_logits, pick_token
from services.inference.core.text_stream import TextStream


class Vocabulary(Protocol):
    """What the core needs to know of a model's tokens."""

    end_tokens: frozenset[int]
    control_texts: tuple[str, ...]

    def piece(self, token: int) -> bytes:
        """Bytes of a token; empty for control tokens."""


class Matcher(Protocol):
    """A constraint's progress over one sequence."""

    def mask(self, logits: Logits) -> None:
        """Set the logits of tokens that may not come next to -inf, in place."""

    def accept(self, token: int) -> None:
        """Move past a token that the mask allowed."""

    def forced_tokens(self) -> list[int]:
        """Return the tokens that can only come next; they are not accepted yet."""

    def is_complete(self) -> bool:
        """Tell whether the output may end here."""

    def is_stopped(self) -> bool:
        """Tell whether nothing may follow."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one `take` gave: tokens to decode next, text to show, and why it ended if it did."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None


class DecodedSequence:
    """One candidate; `draw` gives the next number of its random stream, uniform in [0, 1)."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        sampling: Sampling,
        draw: Callable[[], float],
        max_tokens: int,
        stop: Sequence[str] = (),
        matcher: Matcher | None = None,
        prompt_tokens: Sequence[int] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._sampling = sampling
        self._draw = draw
        self._max_tokens = max_tokens
        self._matcher = matcher
        self._stream = TextStream(stop)
        self._seen: Counter[int] = Counter(prompt_tokens[-64:])
        self.output_tokens = 0
        self.constraint_satisfied = False

    def take(self, logits: Logits) -> Step:
        """Pick from the logits of the last position; they are changed in place."""
        adjust_logits(logits, self._sampling, self._seen)
        if self._matcher is not None:
            self._matcher.mask(logits)
        token = pick_token(logits, self._sampling, self._draw() if self._sampling.temperature > 0 else 0.0)
        if token in self._vocabulary.end_tokens:
            return self._end(FinishReason.STOP, "")
        tokens = [token]
        self._accept(token)
        if self._matcher is not None:
            for forced in self._matcher.forced_tokens():
                if self.output_tokens >= self._max_tokens or forced in self._vocabulary.end_tokens:
                    break
                self._accept(forced)
                tokens.append(forced)
        text = self._stream.feed(b"".join(self._vocabulary.piece(token) for token in tokens))
        if self._stream.is_stopped or (self._matcher is not None and self._matcher.is_stopped()):
            return self._end(FinishReason.STOP, text)
        if self.output_tokens >= self._max_tokens:
            return self._end(FinishReason.LENGTH, text)
        return Step(tuple(tokens), text)

    def _accept(self, token: int) -> None:
        if self._matcher is not None:
            self._matcher.accept(token)
        self.output_tokens += 1
        self._seen[token] += 1

    def _end(self, reason: FinishReason, text: str) -> Step:
        self.constraint_satisfied = (
            self._matcher is not None and self._matcher.is_complete() and not self._stream.is_stopped
        )
        return Step((), text + self._stream.finish(), reason)
