"""Enforces the tools' schemas on the calls of a model that may call tools, and leaves all other output free.

Theory of operation. An answer turns out to be a call only once the model has begun the call. Until then, every token
may follow, and the matcher watches the bytes of the recent tokens for an object whose first key is `name`, at the
beginning of the answer (bare or fenced) or after the marker of the model's own format. It then replays the object's
tokens on a copy of the compiled call, without the white space before the key. If the copy accepts all tokens, it
decides the following tokens until the object is complete. Otherwise, the call stays free, and its arguments must be
checked later.

Invariants:
    1. Outside a held call, the mask changes no logit.
    2. `is_complete` is never true if the answer has a call that was not held. Every call contains a brace, so a
       brace outside held calls is sufficient to make it false.
    3. A failure of the compiled call ends its hold, never the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pagantic_common.domain.errors import InvalidRequest
from services.inference.core.answers.dialect import Dialect
from services.inference.core.decoding.output import Matcher, Vocabulary
from services.inference.core.decoding.sampling import Logits

Tokenize = Callable[[str], list[int]]

_BEGINNING = b'{"name"'
_SPACED_BEGINNING = re.compile(rb'\{\s*"name"')
_BEFORE_BARE_CALL = re.compile(rb"[\s,;]*(?:`{1,2}\Z|```\w*\s*)?")  # separators of calls and the opening of a fence
_OBJECT_MARKERS = frozenset({"<tool_call>", "<|python_tag|>", "[TOOL_CALLS]"})  # the markers before an object
_WATCHED_BYTES = 64  # an opening with some white space must fit


@dataclass(frozen=True, slots=True)
class CallForm:
    """The compiled form of a call, before any token, and whether it enforces the tools' schemas on arguments."""

    matcher: Matcher
    holds_arguments: bool


class CallMatcher:
    """A matcher of one answer that may contain calls.

    Args:
        call: The matcher of one call object. It is only copied, never advanced.
        dialect: The model's dialect.
        vocabulary: The model's tokens.
        tokenize: Splits a text into tokens, without control tokens.
    """

    def __init__(self, call: Matcher, dialect: Dialect, vocabulary: Vocabulary, tokenize: Tokenize) -> None:
        self._new_call = call
        self._dialect = dialect
        self._vocabulary = vocabulary
        self._tokenize = tokenize
        markers = [re.escape(marker.encode()) for marker in dialect.openings_in_text if marker in _OBJECT_MARKERS]
        self._marked_object: re.Pattern[bytes] | None = None
        if markers:
            self._marked_object = re.compile(
                rb"(?:%s)\s*\[?\s*(?=%s)" % (b"|".join(markers), _SPACED_BEGINNING.pattern)
            )
        self._call: Matcher | None = None
        self._recent: list[tuple[int, bytes]] = []  # the last tokens outside calls that may belong to an opening
        self._is_at_beginning = True
        self._held_calls = 0
        self._has_free_brace = False

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with every token that a held call excludes set to -inf."""
        if self._call is None:
            return logits
        try:
            return self._call.mask(logits)
        except InvalidRequest:
            self._leave_free()
            return logits

    def accept(self, token: int) -> None:
        """Advance past a token that the mask allowed."""
        if self._call is None:
            self._watch(token)
            return
        try:
            self._call.accept(token)
        except InvalidRequest:
            self._leave_free()
        else:
            self._end_if_complete(self._call)

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next, without accepting them."""
        if self._call is None:
            return []
        return self._call.forced_tokens()

    def is_complete(self) -> bool:
        """Return whether the answer has calls and all of them were held and are complete."""
        if self._call is not None or not self._held_calls or self._has_free_brace:
            return False
        return all(b"{" not in piece for _, piece in self._recent)

    def is_stopped(self) -> bool:
        """Return whether the output must end here: after a call in a format that has no marker for another call."""
        return self._held_calls > 0 and self._call is None and self._marked_object is None

    def fork(self) -> CallMatcher:
        """Return a matcher with the same progress."""
        other = CallMatcher(self._new_call, self._dialect, self._vocabulary, self._tokenize)
        if self._call is not None:
            other._call = self._call.fork()
        other._recent = self._recent.copy()
        other._is_at_beginning, other._held_calls = self._is_at_beginning, self._held_calls
        other._has_free_brace = self._has_free_brace
        return other

    def _watch(self, token: int) -> None:
        """Add a token outside calls, and begin to hold a call if the token completes an opening."""
        if not self._is_at_beginning and self._marked_object is None:
            return
        self._recent.append((token, self._vocabulary.piece(token)))
        text = b"".join(piece for _, piece in self._recent)
        begin = self._find_object(text)
        if begin is None:
            self._forget_old(len(text))
            return
        self._has_free_brace = self._has_free_brace or b"{" in text[:begin]
        call = self._repeat(text, begin)
        if call is None:
            self._leave_free()
            return
        self._call = call
        self._recent.clear()
        self._end_if_complete(call)

    def _find_object(self, text: bytes) -> int | None:
        """Return the position of the object of a call, or None while no call has begun for certain."""
        if self._is_at_beginning:
            before = _BEFORE_BARE_CALL.match(text)
            begin = before.end() if before is not None else 0
            if _SPACED_BEGINNING.match(text, begin):
                return begin
            may_begin = _BEGINNING.startswith(text[begin : begin + 1] + text[begin + 1 :].lstrip())
            self._is_at_beginning = may_begin and len(text) < _WATCHED_BYTES
        if self._marked_object is None:
            return None
        marked = self._marked_object.search(text)
        return None if marked is None else marked.end()

    def _forget_old(self, size: int) -> None:
        """Drop old tokens in which no opening can begin any more. `size` is the number of bytes of all tokens."""
        if self._is_at_beginning:
            return
        old = 0
        for _, piece in self._recent:
            if size - len(piece) < _WATCHED_BYTES:
                break
            size -= len(piece)
            self._has_free_brace = self._has_free_brace or b"{" in piece
            old += 1
        del self._recent[:old]

    def _repeat(self, text: bytes, begin: int) -> Matcher | None:
        """Replay the recent text from byte `begin` on a matcher of a call; None if the call does not allow it."""
        written = text[begin:]
        plain = _SPACED_BEGINNING.sub(_BEGINNING, written, count=1)
        tokens = self._tokens_from(begin) if plain == written else self._split(plain)
        call = self._new_call.fork()
        try:
            for token in tokens:
                if not np.isfinite(call.mask(np.zeros(self._vocabulary.size, dtype=np.float32))[token]):
                    return None
                call.accept(token)
        except InvalidRequest:
            return None
        return call if tokens else None

    def _tokens_from(self, begin: int) -> list[int]:
        """Return tokens for the recent bytes from a position on, or no tokens if the bytes cannot be tokenized."""
        position, index = 0, 0
        while position + len(self._recent[index][1]) <= begin:
            position += len(self._recent[index][1])
            index += 1
        tokens = [token for token, _ in self._recent[index:]]
        if position == begin:
            return tokens
        first = self._split(self._recent[index][1][begin - position :])
        return [*first, *tokens[1:]] if first else []

    def _split(self, data: bytes) -> list[int]:
        """Tokenize bytes. Returns no tokens if they stand for other bytes, such as an additional space in front."""
        tokens = self._tokenize(data.decode(errors="replace"))
        return tokens if b"".join(map(self._vocabulary.piece, tokens)) == data else []

    def _end_if_complete(self, call: Matcher) -> None:
        if call.is_complete() or call.is_stopped():
            self._call = None
            self._held_calls += 1
            self._is_at_beginning = True  # another call may follow

    def _leave_free(self) -> None:
        """Leave the rest of the current call free."""
        self._call = None
        self._recent.clear()
        self._is_at_beginning = False
        self._has_free_brace = True
