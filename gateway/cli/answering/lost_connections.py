"""Reads an execution to its end, over connections that are lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from typing import Final

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import Client
from pagantic_common.client.requests import timeout_of
from pagantic_common.domain.errors import DeadlineExceeded, Overloaded, PaganticError, Unavailable

FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 2.0
PATIENCE_S: Final = 120.0
MAX_STATED_WAIT_S: Final = 30.0
CANCEL_S: Final = 5.0


class LostConnection:
    """How long to wait for a connection, longer each time; a call whose own deadline passed has not lost it."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._wait_s = FIRST_WAIT_S

    def is_back(self) -> None:
        """Begin anew after an event."""
        self._since_s = None
        self._wait_s = FIRST_WAIT_S

    def next_wait_s(self, failure: PaganticError) -> float:
        """Return how long to wait until the next try; raises the failure where the patience is over.

        An orchestrator that is overloaded states how long it wants to be left alone.
        """
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s > self._patience_s:
            raise failure
        wait_s = self._wait_s
        self._wait_s = min(2 * wait_s, MAX_WAIT_S)
        if isinstance(failure, Overloaded):
            return max(wait_s, min(failure.retry_after_s or 0.0, MAX_STATED_WAIT_S))
        return wait_s


def events_to_end(
    client: Client,
    request: execution_pb2.SystemRequest,
    on_lost: Callable[[], None],
    timeout_s: float,
    *,
    patience_s: float = PATIENCE_S,
) -> Generator[event_pb2.ExecutionEvent, None, None]:
    """Run a request in the background, and yield its events over all connections; the last is `completed`.

    No text comes twice. Leaving before the end cancels the execution, also one that may have begun although no event
    of it came. Raises the PaganticError of a request of which no event came, of a time that is up, and of a connection
    that is lost for longer than the patience.

    Args:
        client: The client.
        request: The request, which has an id.
        on_lost: Called each time that the connection is lost.
        timeout_s: Longest time of an execution whose request states none, seconds.
        patience_s: Longest time without an event after a lost connection, seconds.
    """
    request.background = True  # Otherwise the execution would end with the connection.
    if not timeout_of(request):
        request.hints.timeout.FromMilliseconds(round(timeout_s * 1000))  # It would have no end without this program.
    reading = _Reading(client, request)
    lost = LostConnection(patience_s)
    try:
        while not reading.has_ended:
            yield from reading.events()
            if reading.was_open:
                lost.is_back()
            if reading.failure is not None and reading.was_open:
                on_lost()
            if reading.failure is not None:
                time.sleep(lost.next_wait_s(reading.failure))
    finally:
        reading.stop()


class _Reading:
    """The place in an execution's events: the last stored one, and the characters of text after it.

    Attributes:
        was_open: Whether the last connection had an event.
        failure: How the last connection was lost.
        has_ended: Whether nothing runs, or nothing any more.
    """

    def __init__(self, client: Client, request: execution_pb2.SystemRequest) -> None:
        self._client = client
        self._request = request
        self._sequence = 0
        self._text_size = 0
        self.was_open = False
        self.failure: PaganticError | None = None
        self.has_ended = False

    def events(self) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Yield the events of one connection; raises the PaganticError of one that was not lost."""
        self.was_open, self.failure = False, None
        try:
            with closing(self._opened()) as events:
                yield from self._new(events)
        except PaganticError as error:
            self._note_failure(error)
        if not (self.has_ended or self.failure):
            self.failure = Unavailable("the stream ended before its execution")
        if self.failure is not None and not self._sequence:
            raise self.failure

    def stop(self) -> None:
        """Cancel the execution, unless it has ended; in a few seconds at most, for no connection may be there."""
        if not self.has_ended:
            with suppress(PaganticError):
                self._client.cancel(self._request.request_id, timeout_s=CANCEL_S)

    def _note_failure(self, error: PaganticError) -> None:
        """Note how the connection was lost; raises a failure of another kind.

        Before the first event, a refusal says that nothing runs. A call that was lost or late may have begun something.
        """
        if isinstance(error, Unavailable) or (self._sequence and isinstance(error, Overloaded)):
            self.failure = error
            return
        self.has_ended = not (self._sequence or isinstance(error, DeadlineExceeded))
        raise error

    def _opened(self) -> Generator[event_pb2.ExecutionEvent, None, None]:
        if self._sequence:
            return self._client.follow(self._request.request_id, after_sequence=self._sequence)
        return self._client.stream(self._request)

    def _new(self, events: Iterable[event_pb2.ExecutionEvent]) -> Iterator[event_pb2.ExecutionEvent]:
        """Yield events without the text that an earlier connection had."""
        known = self._text_size
        for event in events:
            self.was_open = True
            if event.HasField("content_delta"):
                text = event.content_delta.text
                event.content_delta.text = text[known:]
                known = max(0, known - len(text))
                self._text_size += len(event.content_delta.text)
            elif event.sequence > self._sequence:
                self._sequence = event.sequence
                self._text_size = known = 0
            self.has_ended = event.HasField("completed")
            yield event
            if self.has_ended:  # What breaks now was not lost.
                return
