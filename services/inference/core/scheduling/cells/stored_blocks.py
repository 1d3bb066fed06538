"""Names the blocks of KV cells that are stored outside the process.

Theory of operation. A block is the cells of BLOCK_TOKENS tokens at a multiple of them in a sequence. Cells depend on
all tokens before them, so the name of a block is a hash of the name of the block before it, of its tokens, and of their
owner. The chain begins with the root, a hash of what decides an engine's cells beside the tokens: engines of other
roots do not find them. The longest stored prefix needs no index: names are tried in order until one is missing.

Invariants:
    1. Two blocks have the same name only if root, all tokens up to their ends and the owners of these are the same.
    2. A block belongs to everybody if the operator declared all tokens up to its end shared, else to one tenant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCK_TOKENS = 256
_HASH_BYTES = 32
_EVERYBODY = b"\0"
_TENANT = b"\1"


@dataclass(frozen=True, slots=True)
class BlockNames:
    """The names of a prompt's whole blocks, in order, for engines of one root; the root is empty without a store."""

    root: bytes = b""
    names: tuple[str, ...] = ()


NO_BLOCKS = BlockNames()


def root_of(*facts: str) -> bytes:
    """Return the root of engines that have all these facts in common."""
    return _hash(b"".join(_with_length(fact.encode()) for fact in facts))


def name_blocks(
    root: bytes, tokens: Sequence[int], *, tenant: str, shared_tokens: int, block_tokens: int = BLOCK_TOKENS
) -> BlockNames:
    """Return the names of the whole blocks of a prompt, of which all tenants share the first `shared_tokens`."""
    own = _TENANT + _with_length(tenant.encode())
    packed = np.asarray(tokens, dtype="<i4")
    names = []
    before = root
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        owner = own
        if end <= shared_tokens:
            owner = _EVERYBODY
        before = _hash(before + owner + packed[end - block_tokens : end].tobytes())
        names.append(before.hex())
    return BlockNames(root, tuple(names))


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()
