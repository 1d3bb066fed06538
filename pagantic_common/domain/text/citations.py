"""Answers that quote their sources: their limits, their JSON form, and the check of a finished answer.

The check uses only the texts of the sources. It is independent of how the decoder enforces quotes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.boundaries import Boundary, find_boundaries, find_quote, shortest_quotes
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.text.words import split_words

NOT_IN_SOURCES: Final = "The sources do not have the answer."
ABSTENTION_JSON: Final = '{"in_sources": false}'
AFFIRMATION_JSON: Final = '{"in_sources": true'  # prefix of an answer that is not an abstention
MIN_QUOTE_WORDS: Final = 3
MAX_CLAIM_CHARS: Final = 300
MAX_CLAIMS: Final = 32
LEAST_QUOTE_BOUND, GREATEST_QUOTE_BOUND = 6, 200


@dataclass(frozen=True, slots=True)
class CitationPolicy:
    """The limits on an answer's claims, and whether the model may state that the sources lack the answer."""

    max_claims: int = 8
    max_quote_words: int = 40
    may_abstain: bool = True

    def check(self, field: str) -> None:
        """Raise InvalidRequest, naming the field, if a limit is out of range."""
        _check_bound(f"{field}.max_claims", self.max_claims, 1, MAX_CLAIMS)
        _check_bound(f"{field}.max_quote_words", self.max_quote_words, LEAST_QUOTE_BOUND, GREATEST_QUOTE_BOUND)


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement, the number of its source (from 1), and the words quoted from the source."""

    text: str
    source: int
    quote: str


def _check_bound(field: str, value: int, least: int, greatest: int) -> None:
    if not least <= value <= greatest:
        raise InvalidRequest(f"{field} is {value}: it must be between {least} and {greatest}, or 0 for the default")


@lru_cache(maxsize=64)
def schema_of(policy: CitationPolicy) -> str:
    """Return the JSON Schema of an answer; its descriptions explain each field to the model."""
    claim = {
        "type": "object",
        "properties": {
            "source": {
                "type": "integer",
                "minimum": 1,
                "description": "number of the source with the words that answer",
            },
            "quote": {
                "type": "string",
                "description": f"words copied from that source, at most {policy.max_quote_words}",
            },
            "text": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_CLAIM_CHARS,
                "description": "one statement of the answer that the quote supports, in your own words",
            },
        },
        "required": ["source", "quote", "text"],
        "additionalProperties": False,
    }
    schema = {
        "description": "Answer from the numbered sources of the context only.",
        "type": "object",
        "properties": {
            "in_sources": {"type": "boolean", "description": "whether the sources have the answer"},
            "claims": {
                "type": "array",
                "minItems": 1,
                "maxItems": policy.max_claims,
                "items": claim,
                "description": "left out when in_sources is false",
            },
        },
        "required": ["in_sources"],
        "additionalProperties": False,
    }
    return dump_json(schema)


def read_claims(answer_json: str) -> tuple[Claim, ...] | None:
    """Return the claims of an answer, or None if the text is not a valid answer. An abstention has no claims."""
    try:
        answer = parse_json(answer_json)
        if not answer["in_sources"]:
            return ()
        return tuple(Claim(claim["text"], int(claim["source"]), claim["quote"]) for claim in answer["claims"])
    except (JsonTextError, KeyError, TypeError, ValueError, IndexError):
        return None


def text_of(claims: Sequence[Claim]) -> str:
    """Return an answer for people to read: the claims, each followed by the number of its source."""
    if not claims:
        return NOT_IN_SOURCES
    return " ".join(f"{claim.text} [{claim.source}]" for claim in claims)


def find_problems(answer: Any, sources: Sequence[str], policy: CitationPolicy) -> Iterator[tuple[str, str]]:
    """Yield the path of each claim that its source does not support, with a message.

    The answer must satisfy the schema of the policy.
    """
    claims = answer.get("claims", ())
    if not answer["in_sources"]:
        if claims:
            yield "claims", "must be left out when in_sources is false"
        if not policy.may_abstain and can_be_quoted(sources, policy):
            yield "in_sources", "must be true: give the claims that the sources support"
    elif not claims:
        yield "claims", "must not be empty when in_sources is true"
    for index, claim in enumerate(claims):
        path = f"claims[{index}]"
        number = int(claim["source"])
        if number > len(sources):
            yield f"{path}.source", f"there is no source {number}, the last one is {len(sources)}"
        elif problem := _problem_of(claim["quote"], sources[number - 1], policy):
            yield f"{path}.quote", f"{problem} source {number}"


def quotes_of(boundaries: Sequence[Boundary], policy: CitationPolicy) -> Iterator[tuple[int, int]]:
    """Yield the boundary indexes of the shortest quote from each boundary. A text without words has no quotes."""
    if boundaries:
        yield from shortest_quotes(boundaries, min(MIN_QUOTE_WORDS, boundaries[-1].words), policy.max_quote_words)


def can_be_quoted(sources: Sequence[str], policy: CitationPolicy) -> bool:
    """Return whether any source can be quoted. A source without words cannot be quoted."""
    return any(any(quotes_of(find_boundaries(source), policy)) for source in sources)


def _problem_of(quote: str, source: str, policy: CitationPolicy) -> str:
    """Return the reason that a source does not support a quote, or an empty string if it does.

    The reason is a phrase; the caller appends the number of the source.
    """
    if quote not in source:
        return "must be copied without any change from"
    words, source_words = len(split_words(quote)), len(split_words(source))
    least = min(MIN_QUOTE_WORDS, source_words)
    if not source_words or words < least:
        return f"must have at least {max(1, least)} words of"
    if find_quote(quote, source) < 0:
        return "must begin and end with whole words and numbers of"
    if words > policy.max_quote_words:
        return f"has {words} words, and must have at most {policy.max_quote_words} of"
    return ""
