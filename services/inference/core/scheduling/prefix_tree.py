"""Tracks the tokens in the KV cache and the sequences that hold them, in a radix tree over all sequences' tokens.

Theory of operation. A node is a run of tokens whose cells exist once in the unified KV cache. A sequence is a path from
the root to the end of a node. A sequence shares the computed tokens of another sequence by a copy, which needs no more
cells. Finished sequences stay in the tree as idle sequences, so that later sequences can share their tokens. When room
is needed, the least recently used leaves of idle sequences are evicted, and parked in host memory if they are long
enough. The tree appends the operations on the engine's cache to `operations`, in order. All tokens in this module are
keys (see `cache_owners.py`).

Invariants:
    1. A node is held by at least one sequence. The holders of a node also hold its parent.
    2. `used_tokens` is the sum of the nodes' lengths. It never exceeds the capacity if room was made first.
    3. Of the children that begin with the same token, `share` finds only one. The other children are twins, which exist
       because two sequences computed the same token at the same time. Twins count as used and are removed with their
       sequences.

Source: RadixAttention, L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS
2024. Here, evicted leaves are parked in host memory, and tenants are separated by their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.inference.core.scheduling.operations import (
    Adopt,
    Cells,
    CopyPrefix,
    Drop,
    Operation,
    Park,
    Truncate,
    Unpark,
)
from services.inference.core.scheduling.parked_prefixes import ParkedPrefixes, Piece, common_length

WORTH_PARKING = 16  # recomputing fewer tokens is as fast as copying them


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run of keys that continues another run in the same list.

    Attributes:
        parent: The index of the run that this run continues, which is lower than this run's index. It is -1 at the
            beginning of a sequence.
        tokens: The keys of the run, at least one.
    """

    parent: int
    tokens: tuple[int, ...]


class _Node:
    __slots__ = ("children", "holders", "last_used", "parent", "start", "tokens")

    def __init__(self, tokens: list[int], parent: _Node | None, start: int) -> None:
        self.tokens = tokens
        self.parent = parent
        self.start = start
        self.children: dict[int, _Node] = {}
        self.holders: set[int] = set()
        self.last_used = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_found(self) -> bool:
        """Whether `share` finds this node: its parent's child for its first token is this node, not a twin."""
        return self.parent is not None and self.parent.children.get(self.tokens[0]) is self


class PrefixTree:
    """The cells and holders of one KV cache. Sequence ids are 0 to `max_sequences` - 1."""

    def __init__(
        self, *, capacity_tokens: int, max_sequences: int, max_idle_tokens: int, max_parked_tokens: int = 0
    ) -> None:
        self.capacity_tokens = capacity_tokens
        self.used_tokens = 0
        self.changes = 0  # incremented when the cached or parked tokens change
        self.operations: list[Operation] = []
        self.parked = ParkedPrefixes(max_parked_tokens)
        self._max_idle_tokens = max_idle_tokens
        self._root = _Node([], None, 0)
        self._leaves: dict[int, _Node] = {}
        self._free_ids = list(range(max_sequences - 1, -1, -1))
        self._idle: set[int] = set()
        self._uses = 0

    @property
    def free_tokens(self) -> int:
        """The number of cells that no sequence holds."""
        return self.capacity_tokens - self.used_tokens

    @property
    def idle_sequences(self) -> int:
        """The number of finished sequences whose tokens are still cached."""
        return len(self._idle)

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens that a sequence holds."""
        return self._leaves[sequence_id].end

    def tokens(self, sequence_id: int) -> list[int]:
        """Return the tokens of a sequence."""
        runs = [node.tokens for node in self._path(self._leaves[sequence_id])]
        return [token for run in reversed(runs) for token in run]

    def held_tokens(self, sequence_ids: Iterable[int]) -> int:
        """Return the number of cells that the sequences hold together."""
        nodes = {id(node): node for sequence_id in sequence_ids for node in self._path(self._leaves[sequence_id])}
        return sum(len(node.tokens) for node in nodes.values())

    def shared_length(self, tokens: Sequence[int], limit: int) -> int:
        """Return the number of the first `limit` tokens that are cached."""
        return self._find(tokens, limit)[1]

    def kept_length(self, tokens: Sequence[int], limit: int) -> int:
        """Return the number of the first `limit` tokens that are cached or parked, and so need not be computed."""
        return max(self.shared_length(tokens, limit), self.parked.length(tokens, limit))

    def runs(self) -> list[CachedRun]:
        """Return all tokens that `share` finds, cached or parked. Parked runs may repeat cached runs."""
        runs = [CachedRun(-1, entry) for entry in self.parked.entries]
        ahead = [(child, -1) for child in self._root.children.values()]
        while ahead:
            node, parent = ahead.pop()
            ahead += [(child, len(runs)) for child in node.children.values()]
            runs.append(CachedRun(parent, tuple(node.tokens)))
        return runs

    @property
    def idle_tokens(self) -> int:
        """The number of cells that only finished sequences hold. They are freed when other sequences need them."""
        counted: set[int] = set()
        total = 0
        for sequence_id in self._idle:
            for node in self._path(self._leaves[sequence_id]):
                if id(node) in counted:
                    break
                counted.add(id(node))
                if node.holders <= self._idle:
                    total += len(node.tokens)
        return total

    def share(self, tokens: Sequence[int], limit: int) -> int | None:
        """Open a sequence with the cached or parked part of the first `limit` tokens, and return its id.

        Returns None if no id is free.
        """
        parked = self.parked.find(tokens, limit)
        cached = self.shared_length(tokens, limit)
        if parked is None or parked[1] < cached + WORTH_PARKING:
            return self._open(*self._find(tokens, limit))
        entry, length = parked
        missing = [piece for piece in entry.pieces if cached < piece.end and piece.start < length]
        if not self.make_room(tokens=missing[-1].end - missing[0].start, sequences=1):
            return self._open(*self._find(tokens, limit))
        # Making room may have dropped these parked pieces or cached tokens, in which case the search starts again.
        node, shared = self._find(tokens, limit)
        if shared != cached or self.parked.find(tokens, limit) != parked:
            return self.share(tokens, limit)
        sequence_id = self._free_ids.pop()
        self._leaves[sequence_id] = self._root
        self._restore(sequence_id, missing, node, length)
        self._hold(sequence_id, node, shared)  # the cached part is shared instead of holding its tokens twice
        self.append(sequence_id, tokens[shared:length])
        self._touch(self._leaves[sequence_id])
        return sequence_id

    def adopt(self, tokens: Sequence[int], pieces: Sequence[Cells]) -> bool:
        """Park stored pieces of equal length. Returns False if their tokens are already parked or too many."""
        size = len(tokens) // len(pieces)
        added = self._add_parked(tokens, range(size, len(tokens) + 1, size))
        self.operations.extend(Adopt(piece.key, pieces[piece.start // size]) for piece in added)
        self.changes += bool(added)
        return bool(added)

    def holder(self, tokens: Sequence[int], length: int) -> int | None:
        """Return the id of a sequence that holds the first `length` tokens, or None if there is no such sequence."""
        node, cached = self._find(tokens, length)
        if cached < length or not node.holders:
            return None
        return min(node.holders)

    def fork(self, sequence_id: int, length: int) -> int | None:
        """Open a sequence with the first `length` tokens of another sequence, and return its id.

        Returns None if no id is free.
        """
        node = self._leaves[sequence_id]
        while node.start >= length and node.parent is not None:
            node = node.parent
        return self._open(node, length)

    def append(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Add computed tokens to the end of a sequence. The caller must have made room."""
        if not tokens:
            return
        leaf = self._leaves[sequence_id]
        if leaf.parent is None or leaf.children or len(leaf.holders) > 1:
            node = _Node(list(tokens), leaf, leaf.end)
            node.holders.add(sequence_id)
            node.last_used = leaf.last_used
            leaf.children.setdefault(tokens[0], node)
            self._leaves[sequence_id] = node
        else:
            leaf.tokens.extend(tokens)
        self.used_tokens += len(tokens)
        self.changes += 1

    def truncate(self, sequence_id: int, length: int) -> None:
        """Delete the tokens of a sequence from position `length` onwards."""
        if length < self.length(sequence_id):
            self.operations.append(Truncate(sequence_id, length))
            self._cut(sequence_id, length)

    def close(self, sequence_id: int) -> None:
        """Remove a sequence and free its id."""
        self.operations.append(Truncate(sequence_id, 0))
        self._cut(sequence_id, 0)
        del self._leaves[sequence_id]
        self._idle.discard(sequence_id)
        self._free_ids.append(sequence_id)

    def release(self, sequence_id: int) -> None:
        """Keep a finished sequence as idle, cut to the tokens that `share` finds.

        Closes idle sequences whose tokens are also held by other sequences.
        """
        keep = leaf = self._leaves[sequence_id]
        for node in self._path(leaf):
            if not node.is_found and node.parent is not None:
                keep = node.parent
        self.truncate(sequence_id, keep.end)
        self._touch(keep)
        self._idle.add(sequence_id)
        for idle in sorted(self._idle):
            node = self._leaves[idle]
            if node.parent is None or len(node.holders) > 1:
                self.close(idle)
        while self.idle_tokens > self._max_idle_tokens and self._evict():
            pass

    def clear(self) -> None:
        """Remove all sequences and parked tokens, including leftovers of closed sequences in the engine."""
        for sequence_id in sorted(self._leaves):
            self.close(sequence_id)
        self.operations.extend(Truncate(sequence_id, 0) for sequence_id in self._free_ids)
        for key in self.parked.clear():
            self._drop(key)
        self.changes += 1

    def make_room(self, tokens: int = 0, sequences: int = 0) -> bool:
        """Evict idle tokens until `tokens` cells and `sequences` ids are free. Returns False if that is impossible."""
        while self.capacity_tokens - self.used_tokens < tokens or len(self._free_ids) < sequences:
            if not self._evict():
                return False
        return True

    def _open(self, node: _Node, length: int) -> int | None:
        if not self.make_room(sequences=1):
            return None
        # Making room may have evicted the node, but not the rest of its path.
        while node.parent is not None and not node.holders:
            node = node.parent
        length = min(length, node.end)
        sequence_id = self._free_ids.pop()
        self._leaves[sequence_id] = self._root
        self._hold(sequence_id, node, length)
        return sequence_id

    def _hold(self, sequence_id: int, node: _Node, length: int) -> None:
        """Make an empty sequence hold the path to `node`, up to `length`."""
        if length:
            leaf = self._split(node, length)
            self.operations.append(CopyPrefix(min(leaf.holders), sequence_id, length))
            for held in self._path(leaf):
                held.holders.add(sequence_id)
            self._leaves[sequence_id] = leaf
            self._touch(leaf)

    def _find(self, tokens: Sequence[int], limit: int) -> tuple[_Node, int]:
        node, length = self._root, 0
        while length < limit:
            child = node.children.get(tokens[length])
            if child is None:
                break
            node = child
            common = common_length(node.tokens, tokens[length : length + len(node.tokens)], limit - length)
            length += common
            if common < len(node.tokens):
                break
        return node, length

    def _split(self, node: _Node, length: int) -> _Node:
        """Return the node that ends at `length`. Splits `node` if it is longer."""
        if length == node.end:
            return node
        parent = node.parent
        assert parent is not None  # noqa: S101 - the root has no tokens to cut
        cut = length - node.start
        head = _Node(node.tokens[:cut], parent, node.start)
        head.holders = set(node.holders)
        head.last_used = node.last_used
        if node.is_found:
            parent.children[head.tokens[0]] = head
        del node.tokens[:cut]
        node.parent, node.start = head, length
        head.children[node.tokens[0]] = node
        return head

    def _cut(self, sequence_id: int, length: int) -> None:
        self.changes += 1
        leaf = self._leaves[sequence_id]
        while leaf.end > length:
            if leaf.start < length:
                self._split(leaf, length)
            leaf.holders.discard(sequence_id)
            parent = leaf.parent
            assert parent is not None  # noqa: S101 - the root ends at 0
            if not leaf.holders:
                if leaf.is_found:
                    del parent.children[leaf.tokens[0]]
                self.used_tokens -= len(leaf.tokens)
            leaf = parent
        self._leaves[sequence_id] = leaf

    def _evict(self) -> bool:
        """Drop the least recently used leaf of an idle sequence, and park the leaf if it is long.

        Returns False if there is no such leaf.
        """
        if not self._idle:
            return False
        sequence_id = min(self._idle, key=lambda idle: (self._leaves[idle].last_used, idle))
        leaf = self._leaves[sequence_id]
        if len(leaf.holders) == 1 and len(leaf.tokens) >= WORTH_PARKING:
            self._park(sequence_id)
        parent = leaf.parent
        if parent is None or parent.parent is None or len(parent.holders) > 1:
            self.close(sequence_id)
        else:
            self.truncate(sequence_id, parent.end)
        return True

    def _park(self, sequence_id: int) -> None:
        added = self._add_parked(self.tokens(sequence_id))
        self.operations.extend(Park(sequence_id, piece.start, piece.end, piece.key) for piece in added)

    def _add_parked(self, tokens: Sequence[int], ends: Iterable[int] = ()) -> Sequence[Piece]:
        """Park tokens and return the pieces to copy.

        Returns no pieces if the tokens are already parked or too many.
        """
        added = self.parked.add(tokens, ends)
        if added is None:
            return ()
        for key in added.dropped:
            self._drop(key)
        return added.new

    def _restore(self, sequence_id: int, pieces: Sequence[Piece], node: _Node, length: int) -> None:
        """Append the cells of pieces, up to `length`, to an empty sequence that first shares the path to `node`."""
        if pieces[0].start:
            self.operations.append(CopyPrefix(min(node.holders), sequence_id, pieces[0].start))
        for piece in pieces:
            self.operations.append(Unpark(piece.key, sequence_id, min(piece.end, length)))

    def _drop(self, key: int) -> None:
        """Drop a parked piece in the engine. Cancels a planned adoption that no planned operation needs."""
        if not any(isinstance(planned, Unpark) and planned.key == key for planned in self.operations):
            self.operations = [
                planned for planned in self.operations if not (isinstance(planned, Adopt) and planned.key == key)
            ]
        self.operations.append(Drop(key))

    def _touch(self, leaf: _Node) -> None:
        self._uses += 1
        for node in self._path(leaf):
            node.last_used = self._uses

    def _path(self, leaf: _Node) -> list[_Node]:
        nodes = []
        node: _Node | None = leaf
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes
