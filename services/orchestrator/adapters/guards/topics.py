"""Blocks topics by words, or by the topics that a model recognizes in a text.

Options: either `words`, a list of words and phrases that match in any case, or `topics`, a list of topics, with
`threshold`, the lowest probability of a topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagantic_common.guards.plugin import MAX_WINDOW, Finding, Guard, GuardTraits
from services.orchestrator.adapters.guards.judge import JudgedGuard, check_statements
from services.orchestrator.adapters.guards.options import check_names, read_number, read_texts

MAX_WORD_CHARS: Final = MAX_WINDOW // 4  # A match is longer if several blanks separate the words.


class WordsGuard:
    """Finds whole words and phrases in any case."""

    def __init__(self, words: Sequence[str]) -> None:
        phrases = sorted({" ".join(word.split()) for word in words}, key=len, reverse=True)
        parts = (r"\s{1,3}".join(map(re.escape, phrase.split(" "))) for phrase in phrases)
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)", re.IGNORECASE)
        self.traits = GuardTraits(window=3 * len(phrases[0]) + 1)

    def find(self, text: str, start: int) -> list[Finding]:  # noqa: ARG002 - the position does not matter
        """Return the configured words that occur in a text."""
        return [Finding(match.start(), match.end(), "TOPIC") for match in self._pattern.finditer(text)]


def make_guard(options: Mapping[str, Any]) -> Guard:
    """Make the guard."""
    check_names(options, "words", "topics", "threshold")
    words, topics = read_texts(options, "words"), read_texts(options, "topics")
    if bool(words) is bool(topics):
        raise ValueError("it takes either option 'words' or option 'topics'")
    if topics:
        statements = [f"The input is about {topic}." for topic in check_statements(topics, "topics")]
        return JudgedGuard(statements, read_number(options, "threshold", 0.5, most=1.0))
    if any(len(word) > MAX_WORD_CHARS for word in words):
        raise ValueError(f"option 'words' has a text of more than {MAX_WORD_CHARS} characters")
    return WordsGuard(words)
