"""Tells whether a compiled grammar derives a text, byte by byte with the engine."""

from __future__ import annotations

from llguidance import LLMatcher

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.engine_text import byte_tokenizer

_CHUNK_BYTES = 4096


def derives(engine_text: str, text: str) -> bool:
    """Whether the whole text is derived. An ambiguous grammar may take time cubic in the text.

    Raises InvalidRequest (CONSTRAINT_TOO_COMPLEX) when the engine gives up.
    """
    matcher = LLMatcher(byte_tokenizer(), engine_text, log_level=0)
    data = text.encode()
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = list(data[start : start + _CHUNK_BYTES])
        if matcher.try_consume_tokens(chunk) < len(chunk):
            if matcher.is_error():
                reason = matcher.get_error().split(";", 1)[0][:200]
                raise InvalidRequest(
                    f"matching the text with the grammar is too costly: {reason}; a less ambiguous grammar helps",
                    code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
                )
            return False
    return bool(matcher.is_accepting())
