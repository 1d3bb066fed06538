"""Separates the callers of different tenants in the KV cache.

Theory of operation. The cache shares the common tokens of two requests, so the count of cached tokens and the time to
the first token reveal the prompts of other tenants. Therefore the cache identifies a token by a key: the token itself,
with the owner of its request in the higher bits. The same token of another owner has another key, so no search finds
it. The beginning of a prompt that the operator declared shared has owner 0 for all tenants. A position of an image has
no token: each image of a tenant has its own owner number, and its positions replace the tokens. So equal images of a
tenant share their cells, and other images share none.

Source of the attack: G. Wu et al., "I Know What You Asked: Prompt Leakage via KV-Cache Sharing in Multi-Tenant LLM
Serving", NDSS 2025.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

SHARED_OWNER = 0
MAX_OWNERS = 4096
_OWNER_SHIFT = 24  # tokens have fewer bits; keys of few owners fit into a digit of Python's integers
_TOKEN_MASK = (1 << _OWNER_SHIFT) - 1
KeyT = TypeVar("KeyT")


class CacheOwners:
    """Owner numbers of the `capacity` most recently used tenants, and of as many images.

    A forgotten tenant or image gets a new number, and shares nothing that was computed before.
    """

    def __init__(self, capacity: int = MAX_OWNERS) -> None:
        self._capacity = capacity
        self._tenants: OrderedDict[str, int] = OrderedDict()
        self._images: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._last_number = SHARED_OWNER

    def number_of(self, tenant: str) -> int:
        """Return the owner number of a tenant."""
        return self._number(self._tenants, tenant)

    def numbers_of_images(self, owner: int, digests: Iterable[bytes]) -> list[int]:
        """Return the owner numbers of a tenant's images."""
        return [self._number(self._images, (owner, digest)) for digest in digests]

    def _number(self, numbers: OrderedDict[KeyT, int], key: KeyT) -> int:
        number = numbers.get(key)
        if number is None:
            self._last_number += 1
            number = numbers[key] = self._last_number
            if len(numbers) > self._capacity:
                numbers.popitem(last=False)
        numbers.move_to_end(key)
        return number


def owner_of(key: int) -> int:
    """Return the owner number of a key."""
    return key >> _OWNER_SHIFT


def tokens_of(keys: Iterable[int]) -> tuple[int, ...]:
    """Return the tokens of keys, whoever owns them."""
    return tuple(key & _TOKEN_MASK for key in keys)


def cache_keys(tokens: Iterable[int], owner: int) -> list[int]:
    """Return the keys of an owner's tokens in the cache."""
    base = owner << _OWNER_SHIFT
    return [base | token for token in tokens]
