"""Lets a reasoning model think before a constrained answer, for as long as the request allows."""

from __future__ import annotations

from collections.abc import Callable

from services.inference.core.answers.dialect import Dialect
from services.inference.core.decoding.output import Matcher, Vocabulary
from services.inference.core.decoding.reasoning_phase import ReasoningFormat, ReasoningMatcher
from services.inference.core.generation import Reasoning, ReasoningMode

Tokenize = Callable[[str], list[int]]


def with_reasoning(
    answer: Matcher | None, reasoning: Reasoning, dialect: Dialect, vocabulary: Vocabulary, tokenize: Tokenize
) -> Matcher | None:
    """Return the matcher of reasoning and answer; `answer` alone if the model does not think, or must not.

    `tokenize` splits a text into tokens, control tokens included.
    """
    if dialect.reasoning is None or not dialect.may_reason:
        return answer
    limit = reasoning.max_tokens or None
    if reasoning.mode is ReasoningMode.OFF:
        if not dialect.is_in_reasoning:
            return answer
        limit = 0  # the prompt has opened the reasoning: close it at once
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
