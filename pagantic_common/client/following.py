"""Reads the events of an execution to their end, reconnecting after lost connections.

1. A background request continues without its connection. FollowExecution streams the events after a sequence number,
   and repeats the text since the last stored event.
2. The repeated text is cut from the deltas of the later connection, so that readers do not receive it twice. Text that
   differs from the earlier text is not cut; this happens if the execution is not in the background.
3. Nothing is followed before the first event of a request: the caller decides whether to resend the request.
4. An expired call deadline is not a lost connection: the execution is followed again immediately.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypedDict

from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.client.answer_state import is_streamed
from pagantic_common.client.responses import Patience
from pagantic_common.domain.backoff import Backoff
from pagantic_common.domain.errors import DeadlineExceeded, Overloaded, PaganticError, Unavailable

FOLLOWING_PATIENCE_S: Final = 120.0
RECONNECTS: Final = Backoff(first_s=0.2, max_s=2.0, max_stated_s=30.0)

Events = AsyncGenerator[event_pb2.ExecutionEvent, None]
OnLost = Callable[[PaganticError], None]
Stop = Callable[[], Awaitable[None]]
_TEXTS: Final = {"content_delta": "text", "reasoning_delta": "text", "tool_call_delta": "arguments_json"}


class FollowingOptions(TypedDict, total=False):
    """The optional arguments of `Following`."""

    after_sequence: int
    patience_s: float
    on_lost: OnLost | None
    stop: Stop | None


class Following:
    """Reads the events of an execution over any number of connections.

    Attributes:
        sequence: Sequence number of the last stored event read.

    Args:
        begin: Starts the request and opens its stream; None if the execution has already started.
        follow: Opens the stream of events after a sequence number.
        after_sequence: Only events after this sequence number are read.
        patience_s: Maximum time without an event after a lost connection, in seconds.
        on_lost: Called with the failure when a connection is lost, at most once until the next event.
        until_s: Time on the monotonic clock after which connections are no longer opened.
        stop: Cancels the execution if its reader leaves before the end; None lets the execution continue.
    """

    def __init__(
        self,
        begin: Callable[[], Events] | None,
        follow: Callable[[int], Events],
        *,
        after_sequence: int = 0,
        patience_s: float = FOLLOWING_PATIENCE_S,
        on_lost: OnLost | None = None,
        until_s: float = math.inf,
        stop: Stop | None = None,
    ) -> None:
        self.sequence = after_sequence
        self._begin = begin
        self._follow = follow
        self._patience_s = patience_s
        self._on_lost = on_lost
        self._until_s = until_s
        self._stop = stop
        self._patience: Patience | None = None  # None while connected
        self._repeated = _RepeatedText()
        self._has_events = False  # whether the current connection has delivered an event
        self._has_ended = False

    async def events(self) -> Events:
        """Yield the events up to `completed`. Raises PaganticError if the connection is not restored."""
        may_run = True
        try:
            async with aclosing(self._connections()) as events:
                async for event in events:
                    yield event
        except PaganticError as error:
            # A rejected request does not run, but a request may be running if its call was lost or timed out.
            may_run = self._begin is None or isinstance(error, (Unavailable, DeadlineExceeded))
            raise
        finally:
            if self._stop is not None and may_run and not self._has_ended:
                await self._stop()

    async def _connections(self) -> Events:
        while not self._has_ended:
            self._has_events = False
            connection = self._connection()
            failure: PaganticError = Unavailable("the stream ended before its execution")
            try:
                async for event in connection:
                    yield event
            except (Unavailable, Overloaded, DeadlineExceeded) as error:
                failure = error
            finally:
                await connection.aclose()
            if self._begin is not None:
                raise failure
            if not self._has_ended:
                self._repeated.begin_again()
                await self._wait_after(failure)

    async def _connection(self) -> Events:
        """Yield the new events of a connection. A break after `completed` does not count as a lost connection."""
        opened = self._follow(self.sequence) if self._begin is None else self._begin()
        async with aclosing(opened) as events:
            async for event in events:
                if self._is_new(event):
                    yield event
                if self._has_ended:
                    return

    def _is_new(self, event: event_pb2.ExecutionEvent) -> bool:
        """Record the position of an event, and cut repeated text. Return whether any part of the event is left."""
        self._begin = self._patience = None
        self._has_events = True
        if is_streamed(event):
            return self._repeated.cut(event)
        if event.sequence > self.sequence:
            self.sequence = event.sequence
            self._repeated = _RepeatedText()
        self._has_ended = event.HasField("completed")
        return True

    async def _wait_after(self, failure: PaganticError) -> None:
        """Wait before the next connection, or raise `failure` if no connection is to follow."""
        if isinstance(failure, DeadlineExceeded):
            if time.monotonic() >= self._until_s:
                raise failure
            if not self._has_events:
                await asyncio.sleep(RECONNECTS.first_s)
            return
        if self._patience is None:
            self._patience = Patience(self._patience_s, RECONNECTS, until_s=self._until_s)
            if self._on_lost is not None:
                self._on_lost(failure)
        await self._patience.wait_after(failure)


class _RepeatedText:
    """The text since the last stored event, kept to recognize its repetition on a later connection.

    A later connection may split the deltas differently. The id and name that begin a call count as text.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._text = ""
        self._at = 0  # The current connection has repeated the text up to this position.

    def begin_again(self) -> None:
        """Expect the text from its start."""
        self._text = "".join(self._pieces)
        self._pieces = [self._text]
        self._at = 0

    def cut(self, event: event_pb2.ExecutionEvent) -> bool:
        """Cut repeated text from the start of a delta. Return whether any part of the delta is left."""
        kind = event.WhichOneof("event")
        if kind not in _TEXTS:
            return True
        delta = getattr(event, kind)
        text, head = getattr(delta, _TEXTS[kind]), ""
        if kind == "tool_call_delta" and delta.name:
            head = f"\0{delta.id}\0{delta.name}\0"
        repeated_length = self._known_length(head + text)
        if not repeated_length:
            self._pieces.append(head + text)
            return True
        if head:
            delta.ClearField("id")
            delta.ClearField("name")
        new = text[repeated_length - len(head) :]
        setattr(delta, _TEXTS[kind], new)
        self._pieces.append(new)
        return bool(new)

    def _known_length(self, text: str) -> int:
        """Return the length of the repeated text at the start of `text`. Different text ends the repetition."""
        expected = self._text[self._at : self._at + len(text)]
        if not expected:
            return 0
        if not text.startswith(expected):
            self._at = len(self._text)
            return 0
        self._at += len(expected)
        return len(expected)
