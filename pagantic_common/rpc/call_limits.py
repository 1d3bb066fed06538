"""Limits the calls and side streams that a server runs, and divides the calls among tenants and their callers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pagantic_common.domain.calls.principal import Principal, PrincipalKind
from pagantic_common.domain.calls.shares import TENANT_WEIGHT, Shares
from pagantic_common.domain.errors import ErrorCode, Overloaded

BUSY_RETRY_AFTER_S = 1.0
MAX_SIDE_STREAMS_PER_CONNECTION = 4
MAX_SIDE_STREAMS_PER_HOST = 256
CALLER_WEIGHT = 1.0  # A single active caller gets half of the calls.


class CallLimits:
    """Counts running calls and side streams.

    Side streams belong to gRPC's own services: health watches and reflection. They use few resources but never end, so
    they do not count as calls.

    Args:
        max_calls: Maximum number of running calls.
        max_calls_per_host: Maximum number of running calls from a single host.
        max_bytes: Maximum total size of the requests of running calls, in bytes. A single request may be larger.
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
        """The number of running calls."""
        return self._running

    def begin_call(self, peer: str, size_bytes: int) -> None:
        """Count a call of a gRPC peer, such as `ipv4:10.0.0.1:5000`. Raises Overloaded if a limit is exceeded."""
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
        """Count a stream of gRPC's own services. Raises Overloaded if a limit is exceeded."""
        host = host_of(peer)
        is_of_one_connection = host != peer  # All callers of a socket file have the same name.
        if is_of_one_connection and self._streams_of_connection[peer] >= MAX_SIDE_STREAMS_PER_CONNECTION:
            raise _busy(f"the connection already has {MAX_SIDE_STREAMS_PER_CONNECTION} health or reflection streams")
        if self._streams_of_host[host] >= MAX_SIDE_STREAMS_PER_HOST:
            raise _busy(f"the caller's host already has {MAX_SIDE_STREAMS_PER_HOST} health or reflection streams")
        self._streams_of_connection[peer] += 1
        self._streams_of_host[host] += 1

    def end_side_stream(self, peer: str) -> None:
        """Count a stream of gRPC's own services as ended."""
        _decrement(self._streams_of_connection, peer)
        _decrement(self._streams_of_host, host_of(peer))


def host_of(peer: str) -> str:
    """Return a peer's host, for example `ipv4:10.0.0.1` for `ipv4:10.0.0.1:5000`.

    The host of a socket file is the peer itself.
    """
    if peer.startswith(("ipv4:", "ipv6:")):
        return peer.rpartition(":")[0]
    return peer


def _busy(reason: str, code: ErrorCode | None = None) -> Overloaded:
    text = f"{reason}, the most that are allowed: try again later"
    return Overloaded(text, code=code, retry_after_s=BUSY_RETRY_AFTER_S)


def _decrement(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


class CallShares:
    """Divides the running calls among tenants, and among the callers of tenants, in total and of each host.

    Behind a gateway, all calls come from one host, so a tenant may not fill the places of a host either. Callers of a
    service without authentication do not share. Other services of the system are not callers of a tenant: their calls
    count only for the tenant.

    Args:
        max_calls: Maximum number of running calls.
        max_calls_per_host: Maximum number of running calls from a single host.
    """

    def __init__(self, max_calls: int, max_calls_per_host: int) -> None:
        self._max_calls_per_host = max_calls_per_host
        self._all = _Places(max_calls)
        self._hosts: dict[str, _Places] = {}

    @contextmanager
    def held(self, peer: str, caller: Principal) -> Iterator[None]:
        """Count an admitted call of a gRPC peer. Raises Overloaded if the tenant or the caller has used its share."""
        tenant = caller.sharing_tenant
        if tenant is None:
            yield
            return
        host = host_of(peer)
        of_host = self._hosts.get(host)
        if of_host is None:
            of_host = self._hosts[host] = _Places(self._max_calls_per_host)
        begun: list[tuple[Shares, str]] = []
        try:
            for shares, owner in (*self._all.shares_of(tenant, caller), *of_host.shares_of(tenant, caller)):
                if not shares.begin(owner):
                    raise _share_is_used(shares.held_by(owner), owner, caller)
                begun.append((shares, owner))
            yield
        finally:
            for shares, owner in begun:
                shares.end(owner)
            if of_host.is_empty:
                self._hosts.pop(host, None)


class _Places:
    """Places for calls, shared among tenants and callers."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._of_tenants = Shares(count, weight=TENANT_WEIGHT)
        self._of_callers = Shares(count, weight=CALLER_WEIGHT)

    @property
    def is_empty(self) -> bool:
        return self._of_tenants.free == self._count

    def shares_of(self, tenant: str, caller: Principal) -> Iterator[tuple[Shares, str]]:
        """Yield the shares in which a call takes a place, each with its owner."""
        yield self._of_tenants, tenant
        if caller.kind is not PrincipalKind.SERVICE:
            # A caller without a key is known by its name.
            yield self._of_callers, f"{tenant}/{caller.kind}/{caller.key_id or caller.subject}"


def _share_is_used(held: int, owner: str, caller: Principal) -> Overloaded:
    holder = f"tenant {owner!r}" if owner == caller.tenant else "the caller"
    code = None if caller.kind is PrincipalKind.SERVICE else ErrorCode.QUOTA_CONCURRENCY
    return _busy(f"{holder} already has {held} running calls", code)
