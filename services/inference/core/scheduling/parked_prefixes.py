"""Indexes tokens with KV cells parked in host memory, which are copied back instead of recomputed.

Copying takes milliseconds while computing takes seconds, and cells that stay in the cache slow every step.

Theory of operation. An entry is the tokens of one sequence, and its cells are consecutive pieces. Entries share the
pieces of their common tokens. If a new entry departs from another entry within a piece, the new entry gets separate
pieces that are cut at that position. Later entries that depart there then copy only the rest.

Invariants:
    1. No entry is a prefix of another entry.
    2. All pieces together have at most `capacity_tokens` tokens.
    3. A piece belongs to at least one entry, and has the same position in all of its entries.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WORTH_A_PIECE = 16  # a shorter run is copied together with the next run


@dataclass(frozen=True, slots=True)
class Piece:
    """The cells of an entry from position `start` to position `end`. No other piece has the same key."""

    key: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Parked tokens, and the pieces of their cells in order."""

    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Added:
    """The pieces of a new entry that must be copied, and the keys of pieces that no entry uses any more."""

    new: Sequence[Piece]
    dropped: Sequence[int]


class ParkedPrefixes:
    """An index of entries by their tokens. The least recently used entries are dropped first."""

    def __init__(self, capacity_tokens: int) -> None:
        self.parked_tokens = 0
        self.capacity_tokens = capacity_tokens
        self._entries: OrderedDict[Entry, None] = OrderedDict()
        self._uses: Counter[int] = Counter()
        self._keys = 0

    @property
    def entries(self) -> list[tuple[int, ...]]:
        """The tokens of each entry."""
        return [entry.tokens for entry in self._entries]

    def find(self, tokens: Sequence[int], limit: int) -> tuple[Entry, int] | None:
        """Return the entry that shares the longest prefix of the first `limit` tokens, and the length of the prefix."""
        best: tuple[Entry, int] | None = None
        for entry in self._entries:
            length = common_length(entry.tokens, tokens, limit)
            if length and (best is None or length >= best[1]):
                best = (entry, length)
        if best is not None:
            self._entries.move_to_end(best[0])
        return best

    def length(self, tokens: Sequence[int], limit: int) -> int:
        """Return the number of the first `limit` tokens that an entry contains. This does not count as a use."""
        return max((common_length(entry.tokens, tokens, limit) for entry in self._entries), default=0)

    def add(self, tokens: Sequence[int], ends: Iterable[int] = ()) -> Added | None:
        """Add an entry, and return the pieces to copy and to drop.

        Returns None if another entry begins with all of `tokens`, or if the new entry would be too large. If `ends` is
        given, new pieces end only at these ascending positions, the last of which is the number of tokens.
        """
        allowed = tuple(ends)
        common = {entry: common_length(entry.tokens, tokens, len(tokens)) for entry in self._entries}
        longest = max(common.values(), default=0)
        if longest == len(tokens) or len(tokens) > self.capacity_tokens:
            return None
        shared = _shared_pieces(common, allowed)
        start = shared[-1].end if shared else 0
        new = [self._new_piece(*run) for run in pairwise(_cuts(start, longest, len(tokens), allowed))]
        entry = Entry(tuple(tokens), (*shared, *new))
        self._uses.update(piece.key for piece in entry.pieces)
        prefixes = [other for other, length in common.items() if length == len(other.tokens)]
        dropped = self._make_room(prefixes, len(tokens) - start)
        self._entries[entry] = None
        self.parked_tokens += len(tokens) - start
        return Added(new, dropped)

    def clear(self) -> list[int]:
        """Drop all entries and return the keys of their pieces."""
        return [key for entry in list(self._entries) for key in self._drop(entry)]

    def _make_room(self, prefixes: Iterable[Entry], new_tokens: int) -> list[int]:
        """Drop the prefixes of a new entry and the least recently used entries. Returns the keys of unused pieces."""
        unused = [key for other in prefixes for key in self._drop(other)]
        while self.parked_tokens + new_tokens > self.capacity_tokens:
            unused += self._drop(next(iter(self._entries)))
        return unused

    def _new_piece(self, start: int, end: int) -> Piece:
        self._keys += 1
        return Piece(self._keys, start, end)

    def _drop(self, entry: Entry) -> list[int]:
        """Drop an entry and return the keys of the pieces that no entry uses any more."""
        del self._entries[entry]
        self._uses.subtract(piece.key for piece in entry.pieces)
        unused = [piece for piece in entry.pieces if not self._uses[piece.key]]
        for piece in unused:
            del self._uses[piece.key]
            self.parked_tokens -= piece.end - piece.start
        return [piece.key for piece in unused]


def _cuts(start: int, longest: int, size: int, allowed: Sequence[int]) -> list[int]:
    """Return the boundaries of new pieces from `start` to `size`. Other entries depart at `longest`."""
    if not allowed:
        allowed = (longest, size) if longest - start >= WORTH_A_PIECE else (size,)
    return [start, *(end for end in allowed if end > start)]


def _shared_pieces(common: Mapping[Entry, int], allowed: Sequence[int]) -> list[Piece]:
    """Return the longest run of an entry's pieces within the tokens that it shares with the new entry."""
    best: list[Piece] = []
    for entry, length in common.items():
        pieces = [piece for piece in entry.pieces if piece.end <= length]
        while pieces and allowed and pieces[-1].end not in allowed:
            pieces.pop()
        if pieces and (not best or pieces[-1].end > best[-1].end):
            best = pieces
    return best


def common_length(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """Return the length of the common prefix of two sequences, up to `limit`."""
    end = min(len(first), len(second), limit)
    low = 0
    step = 16
    while low < end:
        high = min(low + step, end)
        if tuple(first[low:high]) != tuple(second[low:high]):
            return next(index for index in range(low, high) if first[index] != second[index])
        low, step = high, step * 2
    return end
