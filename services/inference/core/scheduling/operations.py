"""Defines the operations on the engine's KV cache that the scheduler plans and the engine's loop applies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.uint8]  # cells in the engine's format, outside the engine's cache


@dataclass(frozen=True, slots=True)
class CopyPrefix:
    """Shares the first `length` tokens of `source` with `target`, which must be empty or hold the same tokens."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Deletes the tokens of a sequence from position `length` onwards."""

    sequence_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Park:
    """Copies the cells of a sequence from position `start` to position `end` to host memory, under a new key."""

    sequence_id: int
    start: int
    end: int
    key: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Parks a piece from the store under a new key."""

    key: int
    cells: Cells = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unpark:
    """Appends a parked piece to the sequence that ends where the piece starts, and cuts it to `length` tokens."""

    key: int
    sequence_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Drops a parked piece."""

    key: int


@dataclass(frozen=True, slots=True)
class Save:
    """Stores the cells of a sequence from position `start` to position `end` under a name."""

    sequence_id: int
    start: int
    end: int
    name: str


Operation = CopyPrefix | Truncate | Park | Adopt | Unpark | Drop | Save
