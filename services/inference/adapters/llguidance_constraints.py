"""ConstraintCompiler over llguidance: token masks for JSON Schema, GBNF and regular expressions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache

import llama_cpp
import numpy as np
from llguidance import LLMatcher
from llguidance.llamacpp import lltokenizer_from_vocab

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.engine_text import (
    GrammarError,
    engine_text_of_gbnf,
    engine_text_of_regex,
    engine_text_of_schema,
)
from services.inference.core.generation import Constraint, ConstraintKind
from services.inference.core.sampling import Logits

_NEVER = np.float32(-np.inf)
_CACHED_CONSTRAINTS = 128
_REASON_CHARS = 200

_TO_ENGINE_TEXT: dict[ConstraintKind, Callable[[str], str]] = {
    ConstraintKind.SCHEMA: engine_text_of_schema,
    ConstraintKind.GBNF: engine_text_of_gbnf,
    ConstraintKind.REGEX: engine_text_of_regex,
    ConstraintKind.ENGINE_TEXT: str,
}


class LlguidanceMatcher:
    """One constraint's progress over one sequence."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with those of tokens that may not come next at -inf.

        Raises InvalidRequest (CONSTRAINT_TOO_COMPLEX) when the engine gives up, here and in `accept`.
        """
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        self._check()
        allowed = np.zeros(logits.shape[0], dtype=np.bool_)
        known = min(bits.shape[0], logits.shape[0])
        allowed[:known] = bits[:known]
        return np.where(allowed, logits, _NEVER)

    def accept(self, token: int) -> None:
        """Move past a token that the mask allowed."""
        self._matcher.consume_token(token)
        self._check()

    def forced_tokens(self) -> list[int]:
        """Return the tokens that can only come next."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def is_complete(self) -> bool:
        """Tell whether the output may end here."""
        return bool(self._matcher.is_accepting())

    def is_stopped(self) -> bool:
        """Tell whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    def fork(self) -> LlguidanceMatcher:
        """Return a matcher with the same progress."""
        return LlguidanceMatcher(self._matcher.deep_copy())

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().split(";", 1)[0].splitlines()[0]
            raise InvalidRequest(
                f"the decoder cannot go on enforcing the constraint: {reason[:_REASON_CHARS]}",
                code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
            )


class LlguidanceCompiler:
    """Compiles constraints for one model's tokens."""

    def __init__(self, vocab: llama_cpp.llama_vocab_p) -> None:
        with warnings.catch_warnings():
            # llguidance reads token attributes through a name that llama-cpp-python has deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._tokenizer = lltokenizer_from_vocab(vocab)

        self._compile = lru_cache(_CACHED_CONSTRAINTS)(self._compile_anew)

    def start(self, constraint: Constraint) -> LlguidanceMatcher:
        """Return a fresh matcher; one that was compiled lately is copied."""
        return self._compile(constraint).fork()

    def _compile_anew(self, constraint: Constraint) -> LlguidanceMatcher:
        try:
            text = _TO_ENGINE_TEXT[constraint.kind](constraint.text)
        except GrammarError as error:
            raise InvalidRequest(str(error), code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID) from None
        matcher = LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            reason = str(matcher.get_error()).strip().splitlines()
            raise InvalidRequest(
                f"the decoder cannot enforce this {constraint.kind}: {reason[0] if reason else 'no reason given'}",
                code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID,
            )
        return LlguidanceMatcher(matcher)
