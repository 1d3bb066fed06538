"""Bytes on the port that are no calls: frames of HTTP/2 cut and mixed, readers that do not read, resets."""

import os
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.target import running_target

EXAMPLES = int(os.environ.get("PAGANTIC_FUZZ_EXAMPLES") or 20) * 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_WINDOW = b"\x00\x04\x00\x00\x00\x00"  # SETTINGS_INITIAL_WINDOW_SIZE 0
HALF_OPEN = 300


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with running_target(tmp_path_factory.mktemp("garbage")) as running:
        yield running


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


FIELDS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/pagantic.tools.v1.ToolService/ListTools"),
    (b":authority", b"x"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"grpc-timeout", b"99999999999H"),
    (b"grpc-encoding", b"none\x00"),
    (b"x-request-id", b"\xff" * 60),
    (b"traceparent", b"00-" + b"f" * 100),
]
headers = st.lists(st.sampled_from(FIELDS), max_size=12).map(
    lambda fields: b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
)
frames = st.builds(
    frame,
    st.integers(0, 12),
    st.sampled_from([0, 1, 4, 5, 8, 255]),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
    headers | st.binary(max_size=60) | st.sampled_from([NO_WINDOW, bytes(4), bytes(8)]),
)


def connect(target):
    host, _, port = target.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def test_no_frames_keep_others_from_their_answer(target):
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(frames, max_size=8).map(b"".join) | st.binary(max_size=200), st.booleans(), st.booleans())
    def send(sent, has_preface, is_reset):
        with connect(target) as peer:
            if is_reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall((PREFACE + frame(4, 0, 0, b"") if has_preface else b"") + sent)
        assert target.is_serving()

    send()


def test_connections_that_say_nothing_keep_nobody_from_an_answer(target):
    peers = [connect(target) for _ in range(HALF_OPEN)]
    try:
        for peer in peers[::2]:
            peer.sendall(PREFACE + frame(4, 0, 0, NO_WINDOW) + frame(1, 4, 1, b""))
        assert target.is_serving()
    finally:
        for peer in peers:
            peer.close()
    assert target.is_serving()
