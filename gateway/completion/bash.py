"""Reads the line that bash has in parts, and writes completions as it takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.completion.words import Item

# Bash splits words at these, and replaces only what follows the last of them. A model's name has a colon.
_BREAKS = ":="


def read_line(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the whole words after the program's name, and the one at the cursor, which may be empty."""
    parts = environment.get("COMP_WORDS", "").split("\n")
    try:
        cursor = int(environment.get("COMP_CWORD", ""))
    except ValueError:
        cursor = len(parts) - 1
    words = _joined((*parts, "")[1 : cursor + 1])
    if not words:
        return [], ""
    return words[:-1], words[-1]


def written_for_bash(items: Sequence[Item], last: str) -> str:
    """Return a line for each completion, without what bash keeps of the last word."""
    kept = 1 + max(last.rfind(character) for character in _BREAKS)
    return "\n".join(word[kept:] for word, _help in items)


def _joined(parts: Sequence[str]) -> list[str]:
    """Put the words together that bash has split."""
    words: list[str] = []
    is_open = False
    for part in parts:
        is_break = bool(part) and not part.strip(_BREAKS)
        if words and (is_open or is_break):
            words[-1] += part
        else:
            words.append(part)
        is_open = is_break
    return words
