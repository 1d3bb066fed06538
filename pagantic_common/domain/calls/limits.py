"""Limits on a server's running calls: in all, per host and in bytes; and on gRPC's own streams."""

from __future__ import annotations

from collections import Counter

from pagantic_common.domain.errors import Overloaded

BUSY_RETRY_AFTER_S = 1.0
MAX_SIDE_STREAMS_PER_CONNECTION = 4
MAX_SIDE_STREAMS_PER_HOST = 256


class CallLimits:
    """Counts running calls and side streams.

    Side streams are gRPC's own streams: health watches and reflection. They cost little and never end, so they do not
    count as calls.

    Args:
        max_calls: Most running calls.
        max_calls_per_host: Most running calls from a single host.
        max_bytes: Most bytes in the requests of running calls; a single request may be larger.
    """

    def __init__(self, max_calls: int, max_calls_per_host: int, max_bytes: int) -> None:
        self._max_calls = max_calls
        self._max_calls_per_host = max_calls_per_host
        self._max_bytes = max_bytes
        self._running = 0
        self._bytes = 0
        self._calls: Counter[str] = Counter()
        self._streams_of_host: Counter[str] = Counter()
        self._streams_of_connection: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Number of running calls."""
        return self._running

    def begin_call(self, peer: str, size_bytes: int) -> None:
        """Count a call of a gRPC peer, `ipv4:10.0.0.1:5000`; raises Overloaded beyond a limit."""
        host = host_of(peer)
        if self._running >= self._max_calls:
            raise _busy(f"the service already runs {self._max_calls} calls")
        if self._calls[host] >= self._max_calls_per_host:
            raise _busy(f"the caller's host already has {self._max_calls_per_host} running calls")
        if self._bytes and self._bytes + size_bytes > self._max_bytes:
            raise _busy(f"the requests of running calls already have {self._bytes} bytes")
        self._running += 1
        self._bytes += size_bytes
        self._calls[host] += 1

    def end_call(self, peer: str, size_bytes: int) -> None:
        """Count a call as ended."""
        self._running -= 1
        self._bytes -= size_bytes
        _decrement(self._calls, host_of(peer))

    def begin_side_stream(self, peer: str) -> None:
        """Count one of gRPC's own streams; raises Overloaded beyond a limit."""
        host = host_of(peer)
        is_of_one_connection = host != peer  # callers of a socket file all have the same name
        if is_of_one_connection and self._streams_of_connection[peer] >= MAX_SIDE_STREAMS_PER_CONNECTION:
            raise _busy(f"the connection already has {MAX_SIDE_STREAMS_PER_CONNECTION} health or reflection streams")
        if self._streams_of_host[host] >= MAX_SIDE_STREAMS_PER_HOST:
            raise _busy(f"the caller's host already has {MAX_SIDE_STREAMS_PER_HOST} health or reflection streams")
        self._streams_of_connection[peer] += 1
        self._streams_of_host[host] += 1

    def end_side_stream(self, peer: str) -> None:
        """Count a stream of gRPC's own as ended."""
        _decrement(self._streams_of_connection, peer)
        _decrement(self._streams_of_host, host_of(peer))


def host_of(peer: str) -> str:
    """Return a peer's host, which is `ipv4:10.0.0.1` for `ipv4:10.0.0.1:5000`; a socket file is its own host."""
    if peer.startswith(("ipv4:", "ipv6:")):
        return peer.rpartition(":")[0]
    return peer


def _busy(reason: str) -> Overloaded:
    return Overloaded(f"{reason}, the most that are allowed: try again later", retry_after_s=BUSY_RETRY_AFTER_S)


def _decrement(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
