"""Keeps rows of logits whose tokens other candidates or requests are likely to repeat.

When a prompt comes again, or another candidate samples the same tokens, the row is known and only the draw is new: the
distribution is the same, and nothing is computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from services.inference.core.decoding.sampling import Logits


class LogitsMemo:
    """Keeps the most recently used rows by the tokens they follow."""

    def __init__(self, capacity_rows: int) -> None:
        self._capacity_rows = capacity_rows
        self._rows: OrderedDict[tuple[int, ...], Logits] = OrderedDict()

    def __contains__(self, tokens: Sequence[int]) -> bool:
        return bool(self._rows) and tuple(tokens) in self._rows

    def keep(self, tokens: Sequence[int], logits: Logits) -> None:
        """Keep a copy of the row that follows `tokens`."""
        if self._capacity_rows:
            key = tuple(tokens)
            self._rows[key] = logits.copy()
            self._rows.move_to_end(key)
            if len(self._rows) > self._capacity_rows:
                self._rows.popitem(last=False)

    def row(self, tokens: Sequence[int]) -> Logits:
        """Return a copy of the row that follows `tokens`, which must be kept."""
        key = tuple(tokens)
        self._rows.move_to_end(key)
        return self._rows[key].copy()

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
