"""Finds tools by the words of their names, descriptions and parameters."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.text.scoring import TextIndex

NAME_WEIGHT = 2  # a word of the name counts as much as two words of the description
MAX_TEXT_CHARS = 8192  # the rest of a tool's text is not searched

_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_.\-/]")


class ToolIndex:
    """An index of tools, built once and searched often. The score is BM25, above 0; higher is better."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._names = [tool.name for tool in tools]
        self._index = TextIndex([_text_of(tool) for tool in tools])

    def search(self, query: str, is_wanted: Callable[[str], bool], limit: int) -> list[tuple[str, float]]:
        """Return the names and scores of the best wanted tools, best first. Ties are sorted by name."""
        scores = self._index.bm25(_split_words(query))
        scored_tools = [(self._names[position], score) for position, score in scores.items()]
        matches = (entry for entry in scored_tools if is_wanted(entry[0]))
        return sorted(matches, key=lambda entry: (-entry[1], entry[0]))[:limit]


def _text_of(tool: ToolDefinition) -> str:
    parts = [tool.name] * NAME_WEIGHT + [tool.description]
    with contextlib.suppress(JsonTextError):  # the name and description are still searched
        parts += _words_of_parameters(parse_json(tool.parameters_json or "{}"))
    return _split_words(" ".join(parts)[:MAX_TEXT_CHARS])


def _words_of_parameters(schema: Any) -> Iterator[str]:
    """Yield the names and descriptions of parameters, including nested parameters."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _words_of_parameters(inner)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield from properties
    description = schema.get("description")
    if isinstance(description, str):
        yield description
    for inner in schema.values():
        yield from _words_of_parameters(inner)


def _split_words(text: str) -> str:
    """Split names such as `get_openIssues` in a text into words."""
    return _WORD_BREAK.sub(" ", text)
