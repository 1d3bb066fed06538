"""Computes the keys by which replicas and orchestrators identify the cached prefixes of prompts.

Here a prompt is a sequence of bytes: its tools, then its messages. The key of a block is a hash of all bytes from the
start of the prompt to the end of the block, so equal keys mean equal prefixes. An incomplete last block has no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

BLOCK_BYTES = 256  # about 60 tokens of English
MAX_BLOCKS = 512
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class PromptPrefixes:
    """The keys of a prompt's blocks, in the order of the blocks, and the size of the prompt."""

    keys: tuple[int, ...]
    size_bytes: int


def prefixes_of(owner: bytes, secret: bytes, parts: Iterable[bytes]) -> PromptPrefixes:
    """Return the keys of at most `MAX_BLOCKS` blocks of a prompt, given its parts in order.

    Owners do not share a cache, so their keys differ. Without the `secret`, which has at most 64 bytes, a key reveals
    nothing about the prompt.
    """
    prompt = b"".join(parts)
    digest = hashlib.blake2b(len(owner).to_bytes(4, "big") + owner, digest_size=_KEY_BYTES, key=secret)
    keys = []
    for end in range(BLOCK_BYTES, min(len(prompt), MAX_BLOCKS * BLOCK_BYTES) + 1, BLOCK_BYTES):
        digest.update(prompt[end - BLOCK_BYTES : end])
        keys.append(int.from_bytes(digest.digest(), "big"))
    return PromptPrefixes(tuple(keys), len(prompt))
