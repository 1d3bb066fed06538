"""Reads an execution to its end, over connections that are lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Final

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import Client
from pagantic_common.client.requests import timeout_of
from pagantic_common.domain.errors import DeadlineExceeded, PaganticError, Unavailable

FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 2.0
PATIENCE_S: Final = 120.0


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
        """Return how long to wait until the next try; raises the failure where the patience is over."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s > self._patience_s:
            raise failure
        wait_s = self._wait_s
        self._wait_s = min(2 * wait_s, MAX_WAIT_S)
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

    No text comes twice. Leaving before the end cancels the execution. Raises the PaganticError of a request of which no
    event came, of a time that is up, and of a connection that is lost for longer than the patience.

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
            try:
                for event in reading.events():
                    lost.is_back()
                    yield event
                failure: PaganticError = Unavailable("the stream ended before its execution")
            except Unavailable as error:
                failure = error
            if reading.has_ended:
                return
            if not reading.sequence:
                raise failure
            if reading.was_open:
                on_lost()
            time.sleep(lost.next_wait_s(failure))
    except PaganticError as error:
        reading.has_ended = not (reading.sequence or isinstance(error, DeadlineExceeded))  # Nobody took the request.
        raise
    finally:
        if not reading.has_ended:
            with suppress(PaganticError):
                client.cancel(request.request_id)


class _Reading:
    """The place in an execution's events: the last stored one, and the characters of text after it."""

    def __init__(self, client: Client, request: execution_pb2.SystemRequest) -> None:
        self._client = client
        self._request = request
        self._text_size = 0
        self.sequence = 0
        self.was_open = False
        self.has_ended = False

    def events(self) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Yield the events of one connection, without the text that came before it was lost."""
        self.was_open = False
        known = self._text_size
        if self.sequence:
            opened = self._client.follow(self._request.request_id, after_sequence=self.sequence)
        else:
            opened = self._client.stream(self._request)
        with closing(opened) as events:
            for event in events:
                self.was_open = True
                if event.WhichOneof("event") == "content_delta":
                    text = event.content_delta.text
                    event.content_delta.text = text[known:]
                    known = max(0, known - len(text))
                    self._text_size += len(event.content_delta.text)
                elif event.sequence > self.sequence:
                    self.sequence = event.sequence
                    self._text_size = known = 0
                self.has_ended = event.HasField("completed")
                yield event
