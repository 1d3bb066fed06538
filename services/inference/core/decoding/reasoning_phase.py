"""Reasoning before the answer: a constraint binds only what follows it, and a limit closes it.

Theory of operation. The output of a reasoning model is reasoning, its closing marker, and the answer. While the model
thinks, everything but the end of the output may come next. At the limit only the closing tokens may. From the first
token after the marker on, the answer's matcher decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from services.inference.core.decoding.output import Matcher, Vocabulary
from services.inference.core.decoding.sampling import Logits


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How one request's reasoning is written; `limit` None lets the model think as long as it likes.

    Attributes:
        opening: The single token that opens reasoning; None when it is not a single token.
        closing: The text that ends reasoning.
        closing_tokens: What is forced at the limit: the closing text and the white space that follows it.
        limit: Most tokens of reasoning.
    """

    opening: int | None
    closing: bytes
    closing_tokens: tuple[int, ...]
    limit: int | None = None


class _Phase(Enum):
    BEFORE = auto()
    THINKING = auto()
    CLOSING = auto()
    ANSWER = auto()


class ReasoningMatcher:
    """A matcher that lets the model think first; `answer` None leaves the answer free.

    Args:
        form: How reasoning is written.
        answer: The matcher of what follows.
        vocabulary: The model's tokens.
        is_open: The prompt has opened the reasoning; else the model may open it with its first token.
    """

    def __init__(self, form: ReasoningFormat, answer: Matcher | None, vocabulary: Vocabulary, *, is_open: bool) -> None:
        self._form = form
        self._answer = answer
        self._vocabulary = vocabulary
        self._phase = _Phase.THINKING if is_open else _Phase.BEFORE
        self._tail = b""
        self._thought = 0
        self._closed = 0
        self._close_at_limit()

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with those of tokens that may not come next at -inf."""
        match self._phase:
            case _Phase.BEFORE:
                return self._mask_before(logits)
            case _Phase.THINKING:
                logits[list(self._vocabulary.end_tokens)] = -np.inf
                return logits
            case _Phase.CLOSING:
                token = self._form.closing_tokens[self._closed]
                masked = np.full_like(logits, -np.inf)
                masked[token] = max(float(logits[token]), 0.0) if np.isfinite(logits[token]) else 0.0
                return masked
            case _Phase.ANSWER:
                return logits if self._answer is None else self._answer.mask(logits)

    def accept(self, token: int) -> None:
        """Move past a token that the mask allowed."""
        match self._phase:
            case _Phase.BEFORE if token == self._form.opening:
                self._phase = _Phase.THINKING
                self._close_at_limit()
            case _Phase.THINKING:
                self._think(token)
            case _Phase.CLOSING:
                self._closed += 1
                if self._closed == len(self._form.closing_tokens):
                    self._phase = _Phase.ANSWER
            case _Phase.BEFORE | _Phase.ANSWER:
                self._phase = _Phase.ANSWER
                if self._answer is not None:
                    self._answer.accept(token)

    def forced_tokens(self) -> list[int]:
        """Return the tokens that can only come next; they are not accepted yet."""
        if self._phase is _Phase.CLOSING:
            return list(self._form.closing_tokens[self._closed :])
        if self._phase is _Phase.ANSWER and self._answer is not None:
            return self._answer.forced_tokens()
        return []

    def is_complete(self) -> bool:
        """Tell whether the output may end here."""
        return self._phase is _Phase.ANSWER and self._answer is not None and self._answer.is_complete()

    def is_stopped(self) -> bool:
        """Tell whether nothing may follow."""
        return self._phase is _Phase.ANSWER and self._answer is not None and self._answer.is_stopped()

    def fork(self) -> ReasoningMatcher:
        """Return a matcher with the same progress."""
        answer = self._answer.fork() if self._answer is not None else None
        other = ReasoningMatcher(self._form, answer, self._vocabulary, is_open=False)
        other._phase, other._tail = self._phase, self._tail
        other._thought, other._closed = self._thought, self._closed
        return other

    def _mask_before(self, logits: Logits) -> Logits:
        if self._answer is None:
            return logits
        opening = self._form.opening
        kept = None if opening is None else logits[opening]
        masked = self._answer.mask(logits)
        if opening is not None and kept is not None:
            masked[opening] = kept
        return masked

    def _think(self, token: int) -> None:
        self._thought += 1
        text = self._tail + self._vocabulary.piece(token)
        if self._form.closing in text:
            self._phase = _Phase.ANSWER
            return
        self._tail = text[-(len(self._form.closing) - 1) :]
        self._close_at_limit()

    def _close_at_limit(self) -> None:
        limit = self._form.limit
        if self._phase is _Phase.THINKING and limit is not None and self._thought >= limit:
            self._phase = _Phase.CLOSING
