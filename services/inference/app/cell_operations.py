"""Applies the scheduler's operations on cells to an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from services.inference.core.scheduling.operations import (
    Adopt,
    Cells,
    CopyPrefix,
    Drop,
    Operation,
    Park,
    Save,
    Truncate,
    Unpark,
)
from services.inference.ports import TextEngine

Copy = Callable[[], Cells]


def apply_operation(engine: TextEngine, operation: Operation, store: Callable[[str, Copy], None]) -> None:
    """Apply an operation to the engine's cache.

    `store` receives the name of a block and a function that copies the block's cells.
    """
    match operation:
        case CopyPrefix():
            engine.copy_prefix(operation.source, operation.target, operation.length)
        case Truncate():
            engine.truncate(operation.sequence_id, operation.length)
        case Park():
            engine.park(operation.sequence_id, operation.start, operation.end, operation.key)
        case Adopt():
            engine.adopt(operation.key, operation.cells)
        case Unpark():
            engine.unpark(operation.key, operation.sequence_id, operation.length)
        case Drop():
            engine.drop(operation.key)
        case Save():
            copy = partial(engine.copy_out, operation.sequence_id, operation.start, operation.end)
            store(operation.name, copy)
