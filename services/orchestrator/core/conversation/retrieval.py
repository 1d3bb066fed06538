"""Estimates the confidence that retrieved chunks answer a question, from their scores or a model's judgment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagantic_common.domain.chunks import Chunk, lay_out
from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.text.quoting import fenced
from pagantic_common.domain.text.scoring import MAX_QUERY_CHARS, coverage_of
from services.orchestrator.core.model.request import Request

YES_OR_NO: Final = ("Yes", "No")
FRACTIONS = frozenset({"keyword"})  # kinds of scores that measure the matched fraction of a query, in [0, 1]


def retrieval_confidence(query: str, chunks: Sequence[Chunk]) -> float | None:
    """Return the mean score if all scores are fractions, or else the fraction of query terms found in the chunks.

    Returns None if there are no chunks. Scores that are not fractions have no scale: BM25 is unbounded, a cosine may be
    negative, and reciprocal ranks only give an order.
    """
    if not chunks:
        return None
    if all(chunk.score_kind in FRACTIONS for chunk in chunks):
        return min(1.0, max(0.0, sum(chunk.score for chunk in chunks) / len(chunks)))
    return coverage_of(query, (chunk.content for chunk in chunks))


def answerability_messages(question: str, chunks: Sequence[Chunk]) -> tuple[Message, ...]:
    """Return the conversation that asks whether chunks contain the answer to a question.

    The chunks come first, as in the prompt for the answer, so that both prompts can share a prefix. The chunks are
    quoted in any role, so that a chunk cannot answer in place of the model.
    """
    yes, no = YES_OR_NO
    user_text = (
        f"{lay_out(chunks, is_fenced=True)}\n\nQuestion:\n\n{fenced(question[-MAX_QUERY_CHARS:])}\n\n"
        f"Does the context have the answer to the question? Answer {yes} or {no}."
    )
    return (Message(Role.USER, content=user_text),)


def refusal_of(request: Request, probability: float | None) -> Failure | None:
    """Return a failure if the chunks are too unlikely to contain the answer, or None if the request may proceed.

    A `probability` of None means that the probability is unknown.
    """
    policy = request.context
    if policy is None or policy.answerability is None or probability is None:
        return None
    least = policy.answerability.min_probability
    if probability >= least:
        return None
    message = (
        f"the chunks retrieved from collection {policy.collection!r} have the answer with probability "
        f"{probability:.3g}, and context.answerability.min_probability is {least:g}: add documents that answer, raise "
        "context.max_chunks, or lower min_probability"
    )
    details = {"probability": probability, "min_probability": least}
    return failure_of(ErrorCode.ORCHESTRATION_NOT_ANSWERABLE, message, details=details)
