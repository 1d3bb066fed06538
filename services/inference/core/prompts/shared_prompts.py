"""Knows the beginnings of prompts that the operator declared shared between tenants."""

from __future__ import annotations

from collections.abc import Sequence


class SharedPrompts:
    """The token prefixes of the declared prompts of one model."""

    def __init__(self, prefixes: Sequence[Sequence[int]] = ()) -> None:
        self._prefixes = sorted({tuple(prefix) for prefix in prefixes}, key=len, reverse=True)

    def shared_length(self, tokens: Sequence[int]) -> int:
        """Return how many of the first tokens are shared: the length of the longest declared prefix of a prompt.

        A part of a declared prefix counts as 0, so that nobody learns a declared prompt bit by bit.
        """
        matches = (prefix for prefix in self._prefixes if tuple(tokens[: len(prefix)]) == prefix)
        return len(next(matches, ()))
