"""Translates sources into the engine's text for answers that quote consecutive words of the given sources.

Theory of operation. A source is cut into blocks of half as many words as a quote may have. A quote begins at any word
and may extend to the end of the next block. A terminal for each word and block describes how a quote continues after
the previous word: `T5: (" word" T6)?`. Each path through the terminals is therefore a contiguous part of the source,
and the text grows linearly with the number of words. The engine's `substring_words` needs no blocks, but it accepts an
empty quote, and its intersection with a word limit exceeds the engine's limits.

The terminals match the JSON text of the source, where quotation marks, backslashes and control characters are escaped
in a single way. A raw quotation mark can therefore only end the quote, and the quote decodes to the exact characters of
the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llguidance import LLMatcher

from pagantic_common.domain.text.boundaries import Boundary, find_boundaries
from pagantic_common.domain.text.citations import (
    ABSTENTION_JSON,
    AFFIRMATION_JSON,
    MAX_CLAIM_CHARS,
    CitationPolicy,
    quotes_of,
)
from pagantic_common.grammar.engine_text import MAX_ENGINE_TEXT_BYTES, beginning_line
from pagantic_common.grammar.problems import GrammarTooComplexError, Problem

_CLAIMS_KEY, _QUOTE_KEY = ', "claims": [', ', "quote": '
_FIRST_CLAIM = f'{AFFIRMATION_JSON}{_CLAIMS_KEY}{{"source": '
_CLAIM = r'claim: "{\"source\": " cited ", \"text\": " TEXT "}"'
_TEXT = r'TEXT: "\"" /([^"\\\x00-\x1F\x7F]|\\["\\\/bfnrt]){1,' + str(MAX_CLAIM_CHARS) + r'}/ "\""'


@dataclass(frozen=True, slots=True)
class _Run:
    """Words without a boundary between them, as JSON text, and the text that separates them from the previous run.

    Attributes:
        words: The number of words up to the end of the run.
        text: The run's text, including the required end of a quote that ends after the run.
        closing: The first part of the separating text; a quote may end after it.
        between: The rest of the separating text.
        beginnings: The run's text from each position where a quote may begin.
    """

    words: int
    text: str
    closing: str
    between: str
    beginnings: tuple[str, ...]


def engine_text_of_citations(sources: Sequence[str], policy: CitationPolicy) -> str:
    """Return the engine's text for answers about these sources. Sources without words cannot be cited.

    If no source can be cited, only the abstention remains. Raises GrammarTooComplexError if the sources are too long.
    """
    cited: list[str] = []
    lines: list[str] = []
    for number, source in enumerate(sources, 1):
        if quote := list(_quote_lines(number, source, policy)):
            cited.append(f"{_literal(f'{number}{_QUOTE_KEY}')} Q{number}")
            lines += quote
            lines += [beginning_line(f"{_FIRST_CLAIM}{number}{_QUOTE_KEY}{mark}") for mark in ("", '"')]
    answers = []
    if policy.may_abstain or not cited:
        answers.append(_literal(ABSTENTION_JSON))
    if cited:
        claims = "claim"
        if policy.max_claims > 1:  # The engine cannot express a repetition of at most 0 times.
            claims += f' (", " claim){{0,{policy.max_claims - 1}}}'
        answers.append(f'{_literal(AFFIRMATION_JSON + _CLAIMS_KEY)} {claims} "]}}"')
        lines += [f"cited: {' | '.join(cited)}", _CLAIM, _TEXT]
    text: str = LLMatcher.grammar_from_lark("\n".join([f"start: {' | '.join(answers)}", *lines, ""]))
    size = len(text.encode())
    if size > MAX_ENGINE_TEXT_BYTES:
        raise GrammarTooComplexError(
            Problem(
                f"the constraint has {size} bytes, at most {MAX_ENGINE_TEXT_BYTES} are taken: quote fewer or "
                "shorter sources, by a lower context.max_tokens or context.max_chunks"
            )
        )
    return text


def _quote_lines(number: int, source: str, policy: CitationPolicy) -> Iterator[str]:
    """Yield the terminals of the quotes of a source. A source that cannot be quoted has no terminals."""
    boundaries = find_boundaries(source)
    quotes = list(quotes_of(boundaries, policy))
    if not quotes:
        return
    block_words = policy.max_quote_words // 2
    runs, ending = _runs_of(source, boundaries)

    def rest(block: int, index: int) -> str:
        """Return the optional continuation, from run `index` onwards, of a quote that begins in `block`."""
        if index < len(runs) and runs[index].words <= (block + 2) * block_words:
            return f" S{number}B{block}W{index}"
        closing = runs[index].closing if index < len(runs) else ending
        return f" {_literal(closing)}?" if closing else ""

    needed: dict[int, int] = {}  # The first run of each block that needs a terminal.
    beginnings: dict[str, list[str]] = {}
    for first, end in quotes:
        block = boundaries[first].words // block_words
        needed.setdefault(block, end)
        more = "".join(f"{run.closing}{run.between}{run.text}" for run in runs[first + 1 : end])
        for beginning in runs[first].beginnings:
            beginnings.setdefault(beginning, []).append(f"{_literal(more)}{rest(block, end)}")
    for block, first in needed.items():
        for index in range(first, len(runs)):
            run = runs[index]
            if run.words > (block + 2) * block_words:
                break
            following = f"{_literal(run.between + run.text)}{rest(block, index + 1)}"
            if run.closing:
                following = f"{_literal(run.closing)} ({following})?"
            yield f"S{number}B{block}W{index}: ({following})?"
    options = (f"{_literal(beginning)} ({' | '.join(more)})" for beginning, more in beginnings.items())
    yield f'Q{number}: "\\"" ({" | ".join(options)}) "\\""'


def _runs_of(source: str, boundaries: Sequence[Boundary]) -> tuple[list[_Run], str]:
    """Return the runs of a source, and the text that may close a quote after the last run."""
    runs: list[_Run] = []
    for before, after in pairwise(boundaries):
        text = source[before.right : after.ends[0]]
        closing = _closing_of(source, before)
        openings = source[before.begins[-1] : before.right], source[before.begins[0] : before.right].lstrip()
        runs.append(
            _Run(
                words=after.words,
                text=_escape(text),
                closing=_escape(closing),
                between=_escape(source[before.ends[0] + len(closing) : before.right]),
                beginnings=tuple(_escape(opening + text) for opening in dict.fromkeys(openings)),
            )
        )
    return runs, _escape(_closing_of(source, boundaries[-1]))


def _closing_of(source: str, boundary: Boundary) -> str:
    """Return the optional end of a quote at a boundary. It follows the required end."""
    return source[boundary.ends[0] : boundary.ends[-1]].rstrip()


def _escape(text: str) -> str:
    """Return a text as it appears inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _literal(text: str) -> str:
    """Return a text as a literal of the engine's language, which does not allow raw control characters."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
