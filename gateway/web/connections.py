"""Limits the connections of a server: their number, their number per peer, and the duration of silence.

uvicorn limits the time of a connection only between two requests, to IDLE_S. Three more limits hold here:

1. The head of a request arrives within the time for reading, counted from the opening of the connection or from the
   first byte of a later head.
2. If an answer is sent before the end of the body, the client has the same time to send the rest, which is discarded.
   Many clients read the answer only afterwards, and would lose it if the connection closed immediately.
3. A client that does not read any part of an answer for WRITE_S is disconnected.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.web.settings import DoorSettings
from pagantic_common.domain.addresses import peer_of
from pagantic_common.domain.calls.shares import Shares
from pagantic_common.settings import Auth

WRITE_S = 30.0
# A request fails if the server closes the connection while the request is in transit. The client should close first.
# Go, reqwest, .NET, nginx and AWS close idle connections after 60 to 90 s.
# OkHttp and Google's load balancers keep connections for minutes, and must repeat such a request.
IDLE_S = 100.0
MIN_IDLE_S = 5.0  # If places run out, connections that have been idle for longer give up their places.
# A small kernel buffer reveals early that a slow client reads, and takes little memory for other clients.
SEND_BUFFER_BYTES = 128 * 1024


class Connections:
    """The open connections of a server, shared among its peers. Local callers are a single peer without a share.

    A connection beyond its peer's share replaces a connection without a request of the same peer. The first connection
    of a peer instead replaces a connection of another peer; the peer with the most connections comes first. If every
    connection of the peer is busy, other peers give up as many idle connections as its share lacks: connections that
    have been idle between two requests for longer than MIN_IDLE_S, the longest idle first.
    """

    def __init__(self, settings: DoorSettings) -> None:
        self.read_s = settings.read_s
        self._is_shared = settings.auth is not Auth.LOCAL
        self._shares = Shares(settings.max_connections)
        self._open: dict[str | None, dict[BoundedProtocol, None]] = {}  # A dict preserves the order of arrival.

    def add(self, connection: BoundedProtocol) -> bool:
        """Count a new connection. Return whether it gets a place."""
        peer = self._peer_of(connection)
        if not self._shares.begin(peer) and not self._replace_silent(peer):
            self._close_idle_for(peer)
            if not self._shares.begin(peer):
                return False
        self._open.setdefault(peer, {})[connection] = None
        return True

    def _replace_silent(self, peer: str | None) -> bool:
        """Close the oldest connection without a request to make room for the peer; return whether there was one."""
        losers = [peer] if peer in self._open else sorted(self._open, key=lambda name: -len(self._open[name]))
        for loser in losers:
            silent = next((connection for connection in self._open[loser] if not connection.has_request), None)
            if silent is not None:
                self._forget(loser, silent)
                silent.transport.abort()
                if loser != peer:
                    self._shares.end(loser)
                    self._shares.begin(peer)
                return True
        return False

    def _close_idle_for(self, peer: str | None) -> None:
        """Close as many idle connections of other peers as a busy peer's share lacks; if too few are idle, close none.

        A client may send its next request while its connection is being closed, and that request would fail.
        """
        idle = [connection for peers in self._open.values() for connection in peers if connection.idle_s > MIN_IDLE_S]
        lacking = self._shares.lacking(peer)
        if len(idle) < lacking:
            return
        for connection in sorted(idle, key=lambda connection: connection.idle_s, reverse=True)[:lacking]:
            self.remove(connection)
            connection.transport.close()

    def remove(self, connection: BoundedProtocol) -> None:
        """Stop counting a connection. The connection may already be uncounted."""
        peer = self._peer_of(connection)
        if connection in self._open.get(peer, {}):
            self._forget(peer, connection)
            self._shares.end(peer)

    def _forget(self, peer: str | None, connection: BoundedProtocol) -> None:
        del self._open[peer][connection]
        if not self._open[peer]:
            del self._open[peer]

    def _peer_of(self, connection: BoundedProtocol) -> str | None:
        if not self._is_shared:
            return None
        return peer_of(connection.client[0]) if connection.client else ""


class BoundedProtocol(H11Protocol):
    """A connection of the server.

    Args:
        connections: All connections of the server.
        arguments: The arguments of uvicorn.
    """

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._all = connections
        self._arrival: asyncio.TimerHandle | None = None  # This timer runs while the server waits for bytes.
        self._departure: asyncio.TimerHandle | None = None  # This timer runs while the client must read bytes.
        self.is_leaving = False

    @property
    def has_request(self) -> bool:
        """Whether the connection has a request that is not completely answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def idle_s(self) -> float:
        """The time since the last answer in seconds, or 0 if another request has begun or no request has ended."""
        if self.has_request or self.timeout_keep_alive_task is None:
            return 0.0
        return self.loop.time() - self.timeout_keep_alive_task.when() + self.timeout_keep_alive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Close the connection if it gets no place; otherwise, begin to wait for a head."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.transport = cast("asyncio.Transport", _PatientTransport(transport, self))
        if self._all.add(self):
            self._limit_arrival()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place of the connection."""
        super().connection_lost(exc)
        self._all.remove(self)
        self._stop_arrival()
        self._stop_departure()

    def data_received(self, data: bytes) -> None:
        """Read bytes of requests."""
        if not self.is_leaving:
            super().data_received(data)
            self._limit_arrival()

    def leave(self, transport: asyncio.Transport) -> None:
        """Close the connection. If a body is incomplete, first discard the rest for a limited time."""
        if transport.is_closing() or self.is_leaving or self.conn.their_state is not h11.SEND_BODY:
            transport.close()
            return
        self.is_leaving = True
        self._stop_arrival()
        self._arrival = self.loop.call_later(self._all.read_s, transport.abort)
        self.flow.resume_reading()
        transport.write_eof()

    def on_response_complete(self) -> None:
        """Limit the time for the rest of the body, and the time for reading the answer."""
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE:  # uvicorn limits the time until the next request begins.
            self._limit_arrival()
        if not self.has_request:  # A pipelined request may have begun.
            self._limit_departure()

    def pause_writing(self) -> None:
        """Wait until the client has read more."""
        super().pause_writing()
        self._limit_departure()

    def resume_writing(self) -> None:
        """Continue the answer, because the client has read enough of it."""
        super().resume_writing()
        if self.has_request:
            self._stop_departure()

    def _limit_arrival(self) -> None:
        """Close the connection soon unless a request is running, because its head or the rest of its body is due."""
        if self.is_leaving:
            return
        if self.has_request or self.transport.is_closing():
            self._stop_arrival()
            if not self.flow.write_paused:  # From now on, the client reads the answer to the request.
                self._stop_departure()
        elif self._arrival is None:
            self._arrival = self.loop.call_later(self._all.read_s, self.transport.abort)

    def _limit_departure(self, unread_bytes: float = float("inf")) -> None:
        """Close the connection unless the client reads, starting now or since its unread bytes reached this number."""
        self._stop_departure()
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes >= unread_bytes:
            self.transport.abort()
        elif left_bytes:
            self._departure = self.loop.call_later(WRITE_S, self._limit_departure, left_bytes)

    def _stop_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _stop_departure(self) -> None:
        if self._departure is not None:
            self._departure.cancel()
            self._departure = None


class _PatientTransport:
    """The transport of a connection. The connection decides when it closes."""

    def __init__(self, transport: asyncio.Transport, connection: BoundedProtocol) -> None:
        self._transport = transport
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close the connection, possibly after the rest of a body."""
        self._connection.leave(self._transport)

    def is_closing(self) -> bool:
        """Return whether no more data can be sent."""
        return self._connection.is_leaving or self._transport.is_closing()
