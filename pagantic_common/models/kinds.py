"""Determines a model's capabilities from the metadata of its file. The module is independent of file formats."""

from __future__ import annotations

from collections.abc import Callable

EMBED = "embed"
SCORE_PAIRS = "score_pairs"
CHAT_CAPABILITIES = ("chat", "tools", "json_schema", "gbnf")
TEXT_CAPABILITIES = ("json_schema", "gbnf")

# These are values of llama.cpp's enumeration of pooling types.
_NO_POOLING = ("", "0")
_RANK_POOLING = "4"


def capabilities_of(read: Callable[[str], str]) -> tuple[str, ...]:
    """Return the capabilities of a model.

    The result is empty for a model that neither generates text nor pools its vectors.

    Args:
        read: Returns a metadata value as text: a boolean as true or false, and a missing value as an empty string.
    """
    architecture = read("general.architecture")
    pooling = read(f"{architecture}.pooling_type")
    if pooling == _RANK_POOLING:
        return (SCORE_PAIRS,)
    if pooling not in _NO_POOLING:
        return (EMBED,)
    if read(f"{architecture}.attention.causal") == "false":
        return ()
    if read("tokenizer.chat_template"):
        return CHAT_CAPABILITIES
    return TEXT_CAPABILITIES


def trained_window(read: Callable[[str], str]) -> int:
    """Return the context window, in tokens, with which the model was trained, or 0 if its file does not state it."""
    window = read(f"{read('general.architecture')}.context_length")
    if window.isdecimal():
        return int(window)
    return 0
