"""Separates the callers of different tenants in the KV cache.

Theory of operation. If the cache shared the common tokens of any two requests, the count of cached tokens and the time
to the first token would reveal the prompts of other tenants. Therefore, the cache identifies a token by a key. The key
is the token itself, with the owner of its request in the higher bits. The same token of another owner has another key,
so no search finds it. Prompt prefixes that the operator declared shared have owner 0 for all tenants. A position
of an image has no token. Each image of a tenant has a separate owner number, and the image's positions replace the
tokens. Equal images of a tenant thus share their cells, and other images share no cells.

Source of the attack: G. Wu et al., "I Know What You Asked: Prompt Leakage via KV-Cache Sharing in Multi-Tenant LLM
Serving", NDSS 2025.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

SHARED_OWNER = 0
MAX_OWNERS = 4096
_OWNER_SHIFT = 24  # tokens have fewer bits; with few owners, a key fits into one digit of a Python integer
_TOKEN_MASK = (1 << _OWNER_SHIFT) - 1
KeyT = TypeVar("KeyT")


class CacheOwners:
    """The owner numbers of the `capacity` most recently used tenants, and of the same number of images.

    A tenant or image that was dropped gets a new number, and shares no tokens that were computed before.
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
    """Return the owner number that a key contains."""
    return key >> _OWNER_SHIFT


def tokens_of(keys: Iterable[int]) -> tuple[int, ...]:
    """Return the tokens of keys, regardless of their owners."""
    return tuple(key & _TOKEN_MASK for key in keys)


def cache_keys(tokens: Iterable[int], owner: int) -> list[int]:
    """Return the cache keys of an owner's tokens."""
    base = owner << _OWNER_SHIFT
    return [base | token for token in tokens]
