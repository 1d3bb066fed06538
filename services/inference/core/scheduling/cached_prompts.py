"""Knows which of the callers' keys of prompts the cache has, so that they can be reported.

A prompt is remembered with its keys once it is computed. What the cache still has of it is looked up in turn, a few
prompts at each review: a lookup costs some microseconds, and the engine waits meanwhile.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable

from services.inference.core.generation import PromptPrefixes
from services.inference.core.scheduling.prefix_tree import PrefixTree

MAX_PROMPTS = 256


class CachedPrompts:
    """The prompts that were computed last, at most `capacity` of them, and the keys of their cached beginnings."""

    def __init__(self, capacity: int = MAX_PROMPTS) -> None:
        self.keys: set[int] = set()
        self._capacity = capacity
        self._prompts: OrderedDict[int, tuple[PromptPrefixes, array[int]]] = OrderedDict()
        self._uses: Counter[int] = Counter()

    def add(self, prefixes: PromptPrefixes, tokens: Iterable[int]) -> None:
        """Remember a prompt that was just computed; `tokens` are as the cache knows them."""
        if not prefixes.keys:
            return
        self._forget(prefixes.keys[-1])
        self._prompts[prefixes.keys[-1]] = (prefixes, array("q", tokens))
        self._uses.update(prefixes.keys)
        self.keys.update(prefixes.keys)
        if len(self._prompts) > self._capacity:
            self._forget(next(iter(self._prompts)))

    def review(self, tree: PrefixTree, count: int) -> None:
        """Look up the cached beginnings of the prompts that were looked up longest ago, at most `count` of them."""
        for name in list(self._prompts)[:count]:
            self._prompts.move_to_end(name)
            prefixes, tokens = self._prompts[name]
            cached = tree.kept_length(tokens, len(tokens))
            blocks = cached * prefixes.prompt_bytes // (len(tokens) * prefixes.block_bytes)
            self.keys.update(prefixes.keys[:blocks])
            self.keys.difference_update(prefixes.keys[blocks:])

    def clear(self) -> None:
        """Forget all prompts: the cache is empty."""
        self.keys.clear()
        self._prompts.clear()
        self._uses.clear()

    def _forget(self, name: int) -> None:
        forgotten = self._prompts.pop(name, None)
        if forgotten is not None:
            self._uses.subtract(forgotten[0].keys)
            for key in forgotten[0].keys:
                if not self._uses[key]:
                    del self._uses[key]
                    self.keys.discard(key)
