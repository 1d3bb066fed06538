"""Implements ConstraintCompiler with llguidance: computes token masks for JSON Schema, GBNF and regular expressions."""

from __future__ import annotations

import asyncio
import hashlib
import re
import warnings
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import llama_cpp
import numpy as np
from llguidance import LLMatcher
from llguidance.llamacpp import lltokenizer_from_vocab

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded
from pagantic_common.grammar.engine_text import MAX_ENGINE_TEXT_BYTES, GrammarError, has_pattern, start_ready_matcher
from pagantic_common.workers.thread_workers import without_panic
from pagantic_common.workers.work_cache import WorkCache
from services.inference.adapters.constraint_trial import refusal, try_constraint
from services.inference.core.decoding.sampling import Logits
from services.inference.core.generation import Constraint, ConstraintKind

GROWTH_BYTES = 8 * 1024 * 1024  # expected growth of a lexer in use
TOKEN_BYTES = 14 * 1024  # growth per token of a lexer that counts characters, measured on English prose
# The engine's limits bound the growth of a lexer that counts characters. These bounds were measured with and without a
# pattern.
MAX_PATTERN_GROWTH_BYTES, MAX_LENGTH_GROWTH_BYTES = 32 * 1024 * 1024, 72 * 1024 * 1024
_LENGTH = re.compile('"(max|min)Length"')
WORN_TOKENS = 1024  # after this many accepted tokens, the next request gets a new lexer
RETRY_AFTER_S = 1.0
_NEVER = np.float32(-np.inf)
_REASON_CHARS = 200


@dataclass(eq=False)
class Lexer:
    """The state that all matchers of a constraint share, including the count of accepted tokens."""

    kind: ConstraintKind
    engine_text: str
    built_bytes: int
    accepted_tokens: int = 0
    has_failed: bool = False
    max_growth_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Set the bound on the lexer's growth. Only a lexer that counts characters grows."""
        self.max_growth_bytes = 0
        if has_pattern(self.engine_text):
            self.max_growth_bytes = MAX_PATTERN_GROWTH_BYTES
        elif _LENGTH.search(self.engine_text) is not None:
            self.max_growth_bytes = MAX_LENGTH_GROWTH_BYTES

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the lexer."""
        grown_bytes = min(self.max_growth_bytes, TOKEN_BYTES * self.accepted_tokens)
        return self.built_bytes + max(GROWTH_BYTES, grown_bytes)

    @property
    def is_worn(self) -> bool:
        """Whether this lexer has failed or grown too much, so that new requests need a new lexer."""
        return self.has_failed or (self.max_growth_bytes > 0 and self.accepted_tokens >= WORN_TOKENS)


class LlguidanceMatcher:
    """Tracks the progress of one sequence through one constraint."""

    def __init__(self, matcher: LLMatcher, lexer: Lexer) -> None:
        self._matcher = matcher
        self.lexer = lexer

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with every excluded token set to -inf.

        Both `mask` and `accept` raise InvalidRequest (CONSTRAINT_TOO_COMPLEX) if the engine gives up.
        """
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        self._check()
        allowed = np.zeros(logits.shape[0], dtype=np.bool_)
        size = min(bits.shape[0], logits.shape[0])
        allowed[:size] = bits[:size]
        return np.where(allowed, logits, _NEVER)

    def accept(self, token: int) -> None:
        """Advance past a token that the mask allowed."""
        self.lexer.accepted_tokens += 1
        self._matcher.consume_token(token)
        self._check()

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def is_complete(self) -> bool:
        """Return whether the output may end here."""
        return bool(self._matcher.is_accepting())

    def is_stopped(self) -> bool:
        """Return whether the output must end here."""
        return bool(self._matcher.is_stopped())

    def fork(self) -> LlguidanceMatcher:
        """Return a copy of this matcher with the same progress."""
        return LlguidanceMatcher(self._matcher.deep_copy(), self.lexer)

    def _check(self) -> None:
        if self._matcher.is_error():
            self.lexer.has_failed = True
            reason = self._matcher.get_error().split(";", 1)[0].splitlines()[0]
            raise InvalidRequest(
                f"the decoder cannot enforce the constraint any longer: {reason[:_REASON_CHARS]}",
                code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
            )


class Workers(Protocol):
    """Runs work in processes with bounded time and memory."""

    def run(self, work: Callable[..., Any], *arguments: object) -> Awaitable[Any]:
        """Return the result of `work`. Raises InvalidRequest (CONSTRAINT_TOO_COMPLEX) if it exceeds the bounds."""


class LlguidanceCompiler:
    """Compiles constraints to masks over one model's tokens. Not thread-safe: use it from a single event loop.

    A constraint of 38 bytes can take minutes and gigabytes to build, so a worker process builds each constraint first.
    This process builds the constraint only if the trial was quick and needed little memory. Cached constraints
    use at most `cache_bytes`; cached and used constraints together use at most twice as much.
    """

    def __init__(
        self, vocab: llama_cpp.llama_vocab_p, workers: Workers, *, cache_bytes: int, monotonic_s: Callable[[], float]
    ) -> None:
        with warnings.catch_warnings():
            # llguidance reads token attributes through a name that llama-cpp-python has deprecated, which causes a
            # warning.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._tokenizer = lltokenizer_from_vocab(vocab)

        self._workers = workers
        # The cache and requests hold lexers. A WeakSet would be unsafe, because requests may end in any thread.
        self._living: set[weakref.ref[Lexer]] = set()
        self._max_living_bytes = 2 * cache_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="constraint")
        self._cache: WorkCache[LlguidanceMatcher] = WorkCache(
            max_bytes=cache_bytes,
            size_of=lambda matcher: matcher.lexer.built_bytes + GROWTH_BYTES,
            monotonic_s=monotonic_s,
        )

    async def start(self, constraint: Constraint) -> LlguidanceMatcher:
        """Return a new matcher, which is a copy of the cached matcher if there is one."""
        source = constraint.text.encode()
        if len(source) > MAX_ENGINE_TEXT_BYTES:
            raise InvalidRequest(
                f"the {constraint.kind} is too large: {len(source)} bytes, at most {MAX_ENGINE_TEXT_BYTES} are taken",
                code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
            )
        key = f"{constraint.kind} {hashlib.sha256(source).hexdigest()}"
        matcher, _ = await self._cache.get(key, lambda: self._try(constraint))
        worn = matcher.lexer
        if worn.is_worn:  # the text of a worn lexer needs no second trial
            self._cache.drop(key, matcher)
            lexer = Lexer(worn.kind, worn.engine_text, worn.built_bytes)
            matcher, _ = await self._cache.get(key, lambda: self._build(lexer))
        return matcher.fork()

    @property
    def living_bytes(self) -> int:
        """The memory of all cached and used constraints."""
        return sum(lexer.size_bytes for reference in tuple(self._living) if (lexer := reference()) is not None)

    def close(self) -> None:
        """Finish the current build and end the build thread."""
        self._thread.shutdown()

    async def _try(self, constraint: Constraint) -> LlguidanceMatcher:
        try:
            trial = await self._workers.run(try_constraint, constraint.kind, constraint.text)
        except Overloaded as error:
            code = ErrorCode.INFERENCE_OVERLOADED
            raise Overloaded(str(error), code=code, retry_after_s=error.retry_after_s) from None
        built_bytes = trial.memory_bytes + 2 * len(trial.engine_text)
        return await self._build(Lexer(constraint.kind, trial.engine_text, built_bytes))

    async def _build(self, lexer: Lexer) -> LlguidanceMatcher:
        used_bytes = self.living_bytes
        if used_bytes + lexer.size_bytes > self._max_living_bytes:
            raise Overloaded(
                f"the constraints of requests take {used_bytes} bytes, at most {self._max_living_bytes} may be taken",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )
        loop = asyncio.get_running_loop()
        work = (start_ready_matcher, (lexer.engine_text, self._tokenizer))
        try:
            matcher = LlguidanceMatcher(await loop.run_in_executor(self._thread, without_panic, *work), lexer)
        except GrammarError as error:
            raise refusal(lexer.kind, error) from None
        self._living.add(weakref.ref(lexer, self._living.discard))
        return matcher
