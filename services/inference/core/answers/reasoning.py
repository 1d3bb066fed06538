"""Lets a model reason before its answer: the constraint binds only the answer, and a limit ends the reasoning.

Theory of operation. The output of a reasoning model consists of reasoning, the closing marker, and the answer. While
the model reasons, every token may follow except the tokens that end the output. At the limit, only the closing tokens
may follow. From the first token after the marker, the answer's matcher decides which tokens may follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from services.inference.core.answers.dialect import Dialect
from services.inference.core.decoding.output import Matcher, Vocabulary
from services.inference.core.decoding.sampling import Logits
from services.inference.core.generation import Reasoning, ReasoningMode

Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The markup and the limit of one request's reasoning.

    Attributes:
        opening: The single token that opens reasoning, or None if the opening marker has several tokens.
        closing: The text that ends reasoning.
        closing_tokens: The tokens forced at the limit, which are the closing text and the white space after it.
        limit: The maximum number of reasoning tokens; None means no limit.
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
    """A matcher that lets the model reason first. If `answer` is None, the answer is unconstrained.

    Args:
        form: The markup and the limit of the reasoning.
        answer: The matcher of the answer.
        vocabulary: The model's tokens.
        is_open: Whether the prompt has opened the reasoning. Otherwise, the model may open it with its first token.
    """

    def __init__(self, form: ReasoningFormat, answer: Matcher | None, vocabulary: Vocabulary, *, is_open: bool) -> None:
        self._form = form
        self._answer = answer
        self._vocabulary = vocabulary
        self._phase = _Phase.BEFORE
        if is_open:
            self._phase = _Phase.THINKING
        self._tail = b""
        self._thought = 0
        self._closed = 0
        self._close_at_limit()

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with every excluded token set to -inf."""
        match self._phase:
            case _Phase.BEFORE:
                return self._mask_before(logits)
            case _Phase.THINKING:
                logits[list(self._vocabulary.end_tokens)] = -np.inf
                return logits
            case _Phase.CLOSING:
                masked = np.full_like(logits, -np.inf)
                masked[self._form.closing_tokens[self._closed]] = 0.0  # makes the token certain, whatever its logit
                return masked
            case _Phase.ANSWER if self._answer is not None:
                return self._answer.mask(logits)
            case _Phase.ANSWER:
                return logits

    def accept(self, token: int) -> None:
        """Advance past a token that the mask allowed."""
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
        """Return the tokens that must come next, without accepting them."""
        if self._phase is _Phase.CLOSING:
            return list(self._form.closing_tokens[self._closed :])
        if self._phase is _Phase.ANSWER and self._answer is not None:
            return self._answer.forced_tokens()
        return []

    def is_complete(self) -> bool:
        """Return whether the output may end here."""
        return self._phase is _Phase.ANSWER and self._answer is not None and self._answer.is_complete()

    def is_stopped(self) -> bool:
        """Return whether the output must end here."""
        return self._phase is _Phase.ANSWER and self._answer is not None and self._answer.is_stopped()

    def fork(self) -> ReasoningMatcher:
        """Return a matcher with the same progress."""
        other = ReasoningMatcher(self._form, None, self._vocabulary, is_open=False)
        if self._answer is not None:
            other._answer = self._answer.fork()
        other._phase, other._tail = self._phase, self._tail
        other._thought, other._closed = self._thought, self._closed
        return other

    def _mask_before(self, logits: Logits) -> Logits:
        if self._answer is None:
            return logits
        opening = self._form.opening
        if opening is None:
            return self._answer.mask(logits)
        opening_logit = logits[opening]
        masked = self._answer.mask(logits)
        masked[opening] = opening_logit
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


def with_reasoning(
    answer: Matcher | None, reasoning: Reasoning, dialect: Dialect, vocabulary: Vocabulary, tokenize: Tokenize
) -> Matcher | None:
    """Return the matcher of reasoning and answer, or only `answer` if the model cannot or must not reason.

    `tokenize` splits a text into tokens, including control tokens.
    """
    if dialect.reasoning is None or not dialect.may_reason:
        return answer
    limit = reasoning.max_tokens or None
    if reasoning.mode is ReasoningMode.OFF:
        if not dialect.is_in_reasoning:
            return answer
        limit = 0  # the prompt has opened the reasoning, so close it at once
    if limit is None and answer is None:
        return None
    form = _reasoning_format(dialect.reasoning, limit, tokenize)
    return ReasoningMatcher(form, answer, vocabulary, is_open=dialect.is_in_reasoning)


def _reasoning_format(markers: tuple[str, str], limit: int | None, tokenize: Tokenize) -> ReasoningFormat:
    opening, closing = markers
    opening_tokens = tokenize(opening)
    opening_token = None
    if len(opening_tokens) == 1:
        opening_token = opening_tokens[0]
    return ReasoningFormat(opening_token, closing.encode(), tuple(tokenize(f"{closing}\n\n")), limit)
