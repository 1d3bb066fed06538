"""How many calls run, in all, for one host and for one connection."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.calls.principal import LOCAL, Principal, PrincipalKind, Scope, work_of
from pagantic_common.domain.errors import ErrorCode, Overloaded
from pagantic_common.rpc.call_limits import MAX_SIDE_STREAMS_PER_HOST, CallLimits, CallShares, host_of

PEERS = st.sampled_from(["ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2", "ipv4:10.0.0.2:1", "ipv6:%5B::1%5D:5", "unix:/run/a"])


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:10.0.0.1:5000", "ipv4:10.0.0.1"), ("ipv6:%5B::1%5D:9", "ipv6:%5B::1%5D"), ("unix:/a:1", "unix:/a:1")],
)
def test_the_host_of_a_peer(peer, host):
    assert host_of(peer) == host


@given(st.lists(st.tuples(st.booleans(), PEERS), max_size=60))
def test_limits_hold_and_what_ended_leaves_room(steps):
    limits, running = CallLimits(5, 3, 100), []
    for is_begin, peer in steps:
        if not is_begin:
            if peer in running:
                running.remove(peer)
                limits.end_call(peer, 1)
            continue
        of_host = sum(host_of(one) == host_of(peer) for one in running)
        if len(running) >= 5 or of_host >= 3:
            with pytest.raises(Overloaded):
                limits.begin_call(peer, 1)
        else:
            limits.begin_call(peer, 1)
            running.append(peer)


def test_streams_of_grpc_itself_are_bounded_for_a_host():
    limits = CallLimits(1, 1, 1)
    for port in range(MAX_SIDE_STREAMS_PER_HOST):
        limits.begin_side_stream(f"ipv4:10.0.0.1:{port}")
    with pytest.raises(Overloaded, match="host"):
        limits.begin_side_stream("ipv4:10.0.0.1:70000")
    limits.begin_call("ipv4:10.0.0.1:1", 1)
    limits.begin_side_stream("ipv4:10.0.0.2:1")


def test_connections_to_a_socket_file_are_not_told_apart():
    limits = CallLimits(1, 1, 1)
    for _ in range(MAX_SIDE_STREAMS_PER_HOST):
        limits.begin_side_stream("unix:/run/pagantic")
    with pytest.raises(Overloaded, match="host"):
        limits.begin_side_stream("unix:/run/pagantic")


def test_requests_are_bounded_in_bytes_together_and_one_alone_is_taken():
    limits = CallLimits(9, 9, 100)
    limits.begin_call("ipv4:10.0.0.1:1", 150)
    with pytest.raises(Overloaded, match="150 bytes"):
        limits.begin_call("ipv4:10.0.0.1:1", 1)
    limits.end_call("ipv4:10.0.0.1:1", 150)
    limits.begin_call("ipv4:10.0.0.1:1", 60)
    limits.begin_call("ipv4:10.0.0.1:1", 40)


HERE, THERE = "ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"


def caller(tenant, key="k"):
    return Principal(tenant, "ci", PrincipalKind.API_KEY, frozenset(Scope), key_id=key)


def fill(shares, stack, peer, principal):
    """Begin calls until one is refused, and return their number and the refusal."""
    count = 0
    while True:
        try:
            stack.enter_context(shares.held(peer, principal))
        except Overloaded as refusal:
            return count, refusal
        count += 1


def test_a_key_leaves_places_of_its_tenant_and_a_tenant_leaves_places_to_others():
    shares = CallShares(1200, 120)
    with ExitStack() as stack:
        count, refusal = fill(shares, stack, HERE, caller("acme"))
        assert count == 60, "a key alone gets half of the host's places"
        assert (refusal.code, refusal.retry_after_s) == (ErrorCode.QUOTA_CONCURRENCY, 1.0)
        assert str(refusal).startswith("the caller already has 60 running calls")
        count, refusal = fill(shares, stack, HERE, caller("acme", "other"))
        assert count == 20, "a tenant alone gets two thirds of them"
        assert str(refusal).startswith("tenant 'acme' already has 80 running calls")
        assert fill(shares, stack, HERE, caller("beta"))[0] > 0
        assert fill(shares, stack, THERE, caller("acme", "other"))[0] == 60, "another host has places of its own"
    with ExitStack() as stack:
        assert fill(shares, stack, HERE, caller("beta"))[0] == 60, "all places are back"


def test_a_tenant_leaves_places_of_all_hosts_to_others():
    shares = CallShares(12, 6)
    with ExitStack() as stack:
        held = sum(fill(shares, stack, f"ipv4:10.0.0.{host}:1", caller("acme", f"k{host}"))[0] for host in range(1, 9))
        assert held == 8
        shares_of_beta = fill(shares, stack, HERE, caller("beta"))[0]
    assert shares_of_beta > 0


def test_calls_of_services_count_for_their_tenant_alone():
    shares = CallShares(12, 12)
    with ExitStack() as stack:
        count, refusal = fill(shares, stack, HERE, work_of("acme"))
    assert count == 8
    assert refusal.code is None


def test_a_caller_without_an_identity_shares_with_nobody():
    shares = CallShares(2, 1)
    with ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(shares.held(HERE, LOCAL))


@given(st.lists(st.tuples(st.booleans(), PEERS, st.sampled_from("abc"), st.sampled_from("xy")), max_size=80))
def test_shares_never_exceed_the_places_and_a_newcomer_finds_one(steps):
    shares, running = CallShares(9, 5), []
    for is_begin, peer, tenant, key in steps:
        if not is_begin:
            if running:
                running.pop(0)[1].close()
            continue
        stack = ExitStack()
        try:
            stack.enter_context(shares.held(peer, caller(tenant, key)))
        except Overloaded:
            of_all, of_host = len(running), sum(host_of(one) == host_of(peer) for (one, _), _ in running)
            has_any = any(one == tenant for (_, one), _ in running)
            assert has_any or of_all >= 8 or of_host >= 4
            continue
        running.append(((peer, tenant), stack))
        assert len(running) <= 9
        assert sum(host_of(one) == host_of(peer) for (one, _), _ in running) <= 5
    for _, stack in running:
        stack.close()
