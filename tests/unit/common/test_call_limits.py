"""How many calls run, in all, for one host and for one connection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import Overloaded
from pagantic_common.rpc.server_call import MAX_SIDE_STREAMS_PER_HOST, CallLimits, host_of

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
