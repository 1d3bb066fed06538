"""Operations on the cells of the engine's KV cache, which the scheduler plans and the engine's loop carries out."""

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
    """Copy the cells of a sequence to host memory."""

    sequence_id: int
    key: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Park pieces that were stored; they follow each other from position 0."""

    key: int
    pieces: tuple[Cells, ...] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unpark:
    """Copy the first `length` parked tokens of a key into an empty sequence."""

    key: int
    sequence_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the parked cells of a key."""

    key: int


@dataclass(frozen=True, slots=True)
class Save:
    """Store the cells of a sequence from position `start` to position `end` under a name."""

    sequence_id: int
    start: int
    end: int
    name: str


Operation = CopyPrefix | Truncate | Park | Adopt | Unpark | Drop | Save
