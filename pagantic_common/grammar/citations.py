"""Sources -> the engine's text of an answer whose quotes are consecutive words of the sources that they name.

Theory of operation. A source of n words is cut into blocks of half as many words as a quote may have. A quote begins at
any word and may go on to the end of the next block. One terminal for each word and block says how a quote goes on after
the word before it: `T5: (" word" T6)?`. So each way through the terminals is a contiguous part of the source, and the
text grows with the number of words. The engine's own `substring_words` would do without the blocks, but it accepts
a quote of no words, and to intersect it with a bound of words exceeds the engine's limits.

The terminals are written over the JSON text of the source, where quotation marks, backslashes and control characters
are escaped in one way. A raw quotation mark therefore only ends the quote, and the quote decodes to the source's own
characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llguidance import LLMatcher

from pagantic_common.domain.text.citations import (
    ABSTENTION_JSON,
    AFFIRMATION_JSON,
    MAX_CLAIM_CHARS,
    MIN_QUOTE_WORDS,
    CitationPolicy,
)
from pagantic_common.domain.text.words import split_words
from pagantic_common.grammar.engine_text import MAX_ENGINE_TEXT_BYTES, beginning_line
from pagantic_common.grammar.problems import GrammarTooComplexError, Problem

_CLAIMS_KEY, _QUOTE_KEY = ', "claims": [', ', "quote": '
_FIRST_CLAIM = f'{AFFIRMATION_JSON}{_CLAIMS_KEY}{{"source": '
_CLAIM = r'claim: "{\"source\": " cited ", \"text\": " TEXT "}"'
_TEXT = r'TEXT: "\"" /([^"\\\x00-\x1F\x7F]|\\["\\\/bfnrt]){1,' + str(MAX_CLAIM_CHARS) + r'}/ "\""'


@dataclass(frozen=True, slots=True)
class _Word:
    """A word as JSON text, with the text between it and the word before.

    Attributes:
        closing: The beginning of that text, up to its last space; a quote may end after it.
        between: The rest of that text.
        opening: The end of that text, from its first space on; a quote may begin with it.
    """

    text: str
    closing: str
    between: str
    opening: str


def engine_text_of_citations(sources: Sequence[str], policy: CitationPolicy) -> str:
    """Return the text for answers about these sources; sources without words cannot be cited.

    Where none can be cited, only the abstention is left. Raises GrammarTooComplexError for sources that are too long.
    """
    cited: list[str] = []
    lines: list[str] = []
    for number, source in enumerate(sources, 1):
        if quote := list(_quote_lines(number, source, policy.max_quote_words // 2)):
            cited.append(f"{_literal(f'{number}{_QUOTE_KEY}')} Q{number}")
            lines += quote
            lines += [beginning_line(f"{_FIRST_CLAIM}{number}{_QUOTE_KEY}{mark}") for mark in ("", '"')]
    answers = []
    if policy.may_abstain or not cited:
        answers.append(_literal(ABSTENTION_JSON))
    if cited:
        claims = "claim"
        if policy.max_claims > 1:  # the engine has no repetition of at most 0 times
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


def _quote_lines(number: int, source: str, block_words: int) -> Iterator[str]:
    """Yield the terminals of the quotes of one source; none for a source without words."""
    words, ending = _words_of(source)
    least = min(MIN_QUOTE_WORDS, len(words))
    if not words:
        return

    def rest(block: int, index: int) -> str:
        """Return what may follow the word before this one in a quote that begins in a block."""
        if index < min(len(words), (block + 2) * block_words):
            return f" S{number}B{block}W{index}"
        closing = words[index].closing if index < len(words) else ending
        return f" {_literal(closing)}?" if closing else ""

    for block in range(-(-len(words) // block_words)):
        first, end = block * block_words + least, min(len(words), (block + 2) * block_words)
        for index in range(first, end):
            word = words[index]
            following = f"{_literal(word.between + word.text)}{rest(block, index + 1)}"
            if word.closing:
                following = f"{_literal(word.closing)} ({following})?"
            yield f"S{number}B{block}W{index}: ({following})?"
    beginnings: dict[str, list[str]] = {}
    for index in range(len(words) - least + 1):
        needed = "".join(f"{word.closing}{word.between}{word.text}" for word in words[index + 1 : index + least])
        following = f"{_literal(needed)}{rest(index // block_words, index + least)}"
        for beginning in dict.fromkeys((words[index].text, words[index].opening + words[index].text)):
            beginnings.setdefault(beginning, []).append(following)
    options = (f"{_literal(beginning)} ({' | '.join(more)})" for beginning, more in beginnings.items())
    yield f'Q{number}: "\\"" ({" | ".join(options)}) "\\""'


def _words_of(source: str) -> tuple[list[_Word], str]:
    """Return the words of a source as JSON text, and the text that closes the last one."""
    words: list[_Word] = []
    before = 0
    for start, end in split_words(source):
        gap = source[before:start]
        closing, opening = _sides_of(gap)
        if not words:
            closing, opening = "", gap.lstrip()
        between = gap[len(closing) :]
        words.append(_Word(_escape(source[start:end]), _escape(closing), _escape(between), _escape(opening)))
        before = end
    return words, _escape(source[before:].rstrip())


def _sides_of(gap: str) -> tuple[str, str]:
    """Return what of the text between two words may end a quote, and what may begin one: punctuation and symbols.

    Without a space between the words neither may.
    """
    spaces = [position for position, char in enumerate(gap) if char.isspace()]
    if not spaces:
        return "", ""
    return gap[: spaces[-1]].rstrip(), gap[spaces[0] :].lstrip()


def _escape(text: str) -> str:
    """Return a text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _literal(text: str) -> str:
    """Return a text as a literal of the engine's language, which takes no raw control characters."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
