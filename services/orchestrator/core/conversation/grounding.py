"""Grounds answers in retrieved chunks: judges whether they contain the answer, and turns quotations into citations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from pagantic_common.domain.chunks import Chunk, ChunkLocation, lay_out
from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.text.boundaries import find_quote
from pagantic_common.domain.text.citations import NOT_IN_SOURCES, CitationPolicy, Claim, can_be_quoted
from pagantic_common.domain.text.quoting import fenced
from pagantic_common.domain.text.scoring import MAX_QUERY_CHARS, coverage_of
from pagantic_common.domain.validation import Guarantee
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import Citation

_UNICODE_ESCAPE_CHARS = 5  # the letter u and four digits


def is_quoted(claim: Claim, chunks: Sequence[Chunk]) -> bool:
    """Return whether a claim quotes whole words of the chunk that it names."""
    return 1 <= claim.source <= len(chunks) and find_quote(claim.quote, chunks[claim.source - 1].content) >= 0


def unquotable_failure(policy: CitationPolicy | None, chunks: Sequence[Chunk]) -> Failure | None:
    """Return a failure if no chunk can be quoted and the model may not abstain, or None otherwise.

    Without chunks, the answer is always an abstention.
    """
    if policy is None or policy.may_abstain or not chunks or can_be_quoted([chunk.content for chunk in chunks], policy):
        return None
    message = (
        f"none of the {len(chunks)} chunks retrieved has words that can be quoted, and output.citations.may_abstain is "
        "false: add documents with text, raise context.max_chunks, or set may_abstain to true"
    )
    return failure_of(ErrorCode.ORCHESTRATION_NOT_ANSWERABLE, message)


def citations_of(claims: Sequence[Claim], chunks: Sequence[Chunk], guarantee: Guarantee) -> tuple[Citation, ...]:
    """Return the citations of claims that quote whole words of their chunks.

    The positions of a citation count characters of the document, or of the chunk if the chunk has no location.
    """
    return tuple(_citation_of(claim, chunks[claim.source - 1], guarantee) for claim in claims)


def _citation_of(claim: Claim, chunk: Chunk, guarantee: Guarantee) -> Citation:
    location = chunk.location or ChunkLocation(0, len(chunk.content))
    start = location.start + find_quote(claim.quote, chunk.content)
    return Citation(
        claim=claim.text,
        source=claim.source,
        document=chunk.source,
        page=location.page,
        start=start,
        end=start + len(claim.quote),
        quote=claim.quote,
        guarantee=guarantee,
    )


class CitedText:
    """Parses an answer's JSON piece by piece, and returns its readable text as soon as possible.

    The joined pieces equal `text_of` for the whole answer. Text that is not an answer's JSON adds nothing.
    """

    def __init__(self) -> None:
        self._key = ""
        self._is_value = False  # whether the current string or word is a value
        self._string: str | None = None  # the decoded characters of the current string
        self._escape: str | None = None  # an incomplete escape sequence, without its first backslash
        self._word = ""  # the characters of a number or a literal
        self._source = ""  # source of the current claim
        self._has_text = False  # whether the current claim has text
        self._has_claims = False

    def feed(self, piece: str) -> str:
        """Parse the next piece, and return the additional readable text."""
        return "".join(text for char in piece for text in self._take(char))

    def _take(self, char: str) -> Iterator[str]:
        if self._string is None:
            yield from self._take_outside(char)
        elif self._escape is not None:
            self._escape += char
            yield from self._add(_decoded(self._escape))
        elif char == "\\":
            self._escape = ""
        elif char == '"':
            yield from self._end_string(self._string)
        else:
            yield from self._add(char)

    def _take_outside(self, char: str) -> Iterator[str]:
        if char == '"':
            self._string = ""
            if self._is_value and self._key == "text" and self._has_claims:
                yield " "
        elif char == ":":
            self._is_value = True
        elif char in ",]}[{":
            yield from self._end_word()
            self._is_value = False
        elif not char.isspace():
            self._word += char

    def _end_string(self, string: str) -> Iterator[str]:
        if not self._is_value:
            self._key = string
        elif self._key == "text":
            self._has_claims = self._has_text = True
            yield from self._mark()
        self._string = None

    def _mark(self) -> Iterator[str]:
        """Yield a mark with the number of the claim's source, once both the claim's text and its source are known."""
        if self._has_text and self._source:
            yield f" [{self._source}]"
            self._source, self._has_text = "", False

    def _end_word(self) -> Iterator[str]:
        word, self._word = self._word, ""
        if self._key == "source" and word.isdecimal():
            self._source = word
            yield from self._mark()
        if self._key == "in_sources" and word == "false":
            yield NOT_IN_SOURCES

    def _add(self, text: str | None) -> Iterator[str]:
        """Add text to the current string, and yield it if it is readable text of the answer.

        A `text` of None means that an escape sequence is incomplete.
        """
        if text is None or self._string is None:
            return
        self._escape = None
        if self._is_value and self._key == "text":
            yield text
        elif not self._is_value:
            self._string += text


def _decoded(escape: str) -> str | None:
    """Return the character of an escape sequence, or None if the sequence is incomplete.

    `escape` is the sequence without its first backslash.
    """
    needed = 1
    if escape[0] == "u":
        needed = _UNICODE_ESCAPE_CHARS
        if len(escape) >= needed and escape[1:3].lower() in ("d8", "d9", "da", "db"):  # a high surrogate
            needed = 2 * _UNICODE_ESCAPE_CHARS + 1
    if len(escape) < needed:
        return None
    try:
        decoded: str = json.loads(f'"\\{escape}"')
    except ValueError:
        return ""
    return decoded.encode(errors="replace").decode()


YES_OR_NO: Final = ("Yes", "No")
FRACTIONS = frozenset({"keyword"})  # kinds of scores that measure the matched fraction of a query, in [0, 1]


def retrieval_confidence(query: str, chunks: Sequence[Chunk]) -> float | None:
    """Return the mean score if all scores are fractions, or else the fraction of query terms in the chunks.

    Returns None if there are no chunks. Scores that are not fractions have no scale: BM25 is unbounded, a cosine may be
    negative, and reciprocal ranks give only an order.
    """
    if not chunks:
        return None
    if all(chunk.score_kind in FRACTIONS for chunk in chunks):
        return min(1.0, max(0.0, sum(chunk.score for chunk in chunks) / len(chunks)))
    return coverage_of(query, (chunk.content for chunk in chunks))


def answerability_messages(question: str, chunks: Sequence[Chunk]) -> tuple[Message, ...]:
    """Return the conversation that asks whether chunks contain the answer to a question.

    The chunks come first, as in the prompt for the answer, so that both prompts can share a prefix. The chunks are
    quoted in every role, so that a chunk cannot answer in place of the model.
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
