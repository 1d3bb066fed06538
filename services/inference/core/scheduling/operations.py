"""Operations on the cells of the engine's KV cache: the scheduler plans them, and the engine's loop applies them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.uint8]  # cells in the engine's own form, outside its cache


@dataclass(frozen=True, slots=True)
class CopyPrefix:
    """Let `target`, which is empty or holds the same tokens, share the first `length` tokens of `source`."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Forget the tokens of a sequence from position `length` on."""

    sequence_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Park:
    """Copy the cells of a sequence from position `start` to position `end` to host memory, under a new key."""

    sequence_id: int
    start: int
    end: int
    key: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Park a piece from the store, under a new key."""

    key: int
    cells: Cells = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unpark:
    """Append a parked piece to the sequence that ends where it begins, and cut the sequence to `length` tokens."""

    key: int
    sequence_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a parked piece."""

    key: int


@dataclass(frozen=True, slots=True)
class Save:
    """Store the cells of a sequence from position `start` to position `end` under a name."""

    sequence_id: int
    start: int
    end: int
    name: str


Operation = CopyPrefix | Truncate | Park | Adopt | Unpark | Drop | Save
