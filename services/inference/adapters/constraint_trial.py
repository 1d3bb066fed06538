"""Builds a constraint in a worker process, to check that this is possible and to measure the memory it needs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.engine_text import (
    GrammarError,
    GrammarTooComplexError,
    byte_tokenizer,
    engine_text_of_gbnf,
    engine_text_of_regex,
    engine_text_of_schema,
    start_matcher,
)
from services.inference.core.generation import ConstraintKind

_HEAP_FIELDS = [
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
]
MAX_MEMORY_BYTES = 32 * 1024 * 1024  # maximum memory of one constraint

_TO_ENGINE_TEXT: dict[ConstraintKind, Callable[[str], str]] = {
    ConstraintKind.SCHEMA: engine_text_of_schema,
    ConstraintKind.GBNF: engine_text_of_gbnf,
    ConstraintKind.REGEX: engine_text_of_regex,
    ConstraintKind.ENGINE_TEXT: str,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial: the constraint as engine text, and the memory that it needs."""

    engine_text: str
    memory_bytes: int


def try_constraint(kind: ConstraintKind, text: str) -> Trial:
    """Build a constraint and compute its first mask.

    Raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID) if the constraint cannot be built. Raises InvalidRequest
    (CONSTRAINT_TOO_COMPLEX) if it exceeds the engine's limits or uses too much memory.
    """
    tokenizer = byte_tokenizer()
    try:
        engine_text = _TO_ENGINE_TEXT[kind](text)
        before = _heap_bytes()
        matcher = start_matcher(engine_text, tokenizer)
        memory_bytes = max(0, _heap_bytes() - before)
        del matcher
    except GrammarError as error:
        raise refusal(kind, error) from None
    if memory_bytes > MAX_MEMORY_BYTES:
        raise InvalidRequest(
            f"the {kind} takes {memory_bytes} bytes when it is built, at most {MAX_MEMORY_BYTES} are taken: make it "
            "simpler",
            code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
        )
    return Trial(engine_text, memory_bytes)


def refusal(kind: ConstraintKind, error: GrammarError) -> InvalidRequest:
    """Return the error to raise for a constraint that cannot be built."""
    if isinstance(error, GrammarTooComplexError):
        return InvalidRequest(
            f"the {kind} is too complex for the decoder: {error}", code=ErrorCode.CONSTRAINT_TOO_COMPLEX
        )
    return InvalidRequest(f"the decoder cannot enforce this {kind}: {error}", code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID)


class _HeapInfo(ctypes.Structure):
    """The struct that glibc's mallinfo2 returns."""

    _fields_ = [(name, ctypes.c_size_t) for name in _HEAP_FIELDS]


def _heap_bytes() -> int:
    """Return the number of allocated bytes in small and large blocks, or 0 if the C library does not count them."""
    read = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if read is None:
        return 0
    read.restype = _HeapInfo
    info = read()
    return int(info.uordblks + info.hblkhd)
