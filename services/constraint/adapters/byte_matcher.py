"""Matches text byte by byte with the engine, within a time limit."""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLMatcher

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.engine_text import byte_tokenizer

_CHUNK_BYTES = 64


class ByteMatcher:
    """Implements GrammarMatcher. An ambiguous grammar costs time cubic in the text, hence the limit."""

    def __init__(self, monotonic_s: Callable[[], float], limit_s: float) -> None:
        self._monotonic_s = monotonic_s
        self._limit_s = limit_s

    def matches(self, engine_text: str, text: str) -> bool:
        """Whether the whole text is derived."""
        matcher = LLMatcher(byte_tokenizer(), engine_text, log_level=0)
        data = text.encode()
        end_s = self._monotonic_s() + self._limit_s
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = list(data[start : start + _CHUNK_BYTES])
            if matcher.try_consume_tokens(chunk) < len(chunk):
                if matcher.is_error():
                    raise _too_complex(matcher.get_error().split(";", 1)[0][:200])
                return False
            if self._monotonic_s() > end_s:
                raise _too_complex(f"took more than {self._limit_s:g} s")
        return bool(matcher.is_accepting())


def _too_complex(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"matching the text with the grammar is too costly: {why}; a less ambiguous grammar helps",
        code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
    )
