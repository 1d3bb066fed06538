"""Hosts, origins, peers and places of requests."""

from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request

from gateway.http.settings import HttpSettings
from gateway.web.entry import LOCAL_NAMES, Entry, host_name_of, is_known_host, is_known_origin
from gateway.web.refusal import Refusal
from pagantic_common.domain.addresses import peer_of


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:80", "localhost"),
        ("[::1]:8090", "[::1]"),
        ("127.0.0.1.evil.example:8090", "127.0.0.1.evil.example"),
        ("", ""),
    ],
)
def test_the_name_of_a_host_is_without_its_port(authority, name):
    assert host_name_of(authority) == name
    assert is_known_host(authority, LOCAL_NAMES) is (name in LOCAL_NAMES)


@pytest.mark.parametrize(
    ("host", "header"),
    [("fd00::5", "[fd00::5]:8080"), ("[fd00::5]", "[fd00::5]"), ("::1", "[::1]:8080"), ("10.0.0.5", "10.0.0.5:8080")],
)
def test_a_request_may_name_the_host_on_which_the_server_listens(host, header):
    entry = Entry(HttpSettings(host=host, port=8080, auth="none"), None, max_body_bytes=1024)
    entry.check(Request({"type": "http", "headers": [(b"host", header.encode())]}))
    with pytest.raises(Refusal):
        entry.check(Request({"type": "http", "headers": [(b"host", b"[fd00::6]:8080")]}))


@pytest.mark.parametrize(
    ("origin", "is_known"),
    [
        ("", True),
        ("http://localhost:8080", True),
        ("http://LOCALHOST:8080", True),
        ("http://localhost:5173", False),
        ("http://localhost", False),
        ("http://127.0.0.1:8080", False),
        ("https://[::1]", False),
        ("http://localhost@evil.example", False),
        ("http://evil.example/localhost", False),
        ("file://localhost", False),
        ("null", False),
        ("http://[", False),
        ("https://page.example", True),
        ("https://page.example:444", False),
    ],
)
def test_pages_of_this_server_and_of_listed_origins_may_call(origin, is_known):
    assert is_known_origin(origin, "localhost:8080", ["https://page.example"]) is is_known


@pytest.mark.parametrize("host", ["gateway.example", "[::1]:80", "[::1]"])
def test_a_page_of_this_server_has_its_host_and_port(host):
    assert is_known_origin(f"https://{host}", host, [])
    assert not is_known_origin(f"https://{host}1", host, [])


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_the_addresses_of_an_ipv6_network_are_one_peer(address, peer):
    assert peer_of(address) == peer


async def test_a_key_that_nobody_has_checked_has_the_share_of_its_peer():
    entry = Entry(HttpSettings(auth="none", max_streams=4), None, max_body_bytes=1024)

    def request(key):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        return Request({"type": "http", "headers": headers, "client": ("192.0.2.1", 1)})

    async with AsyncExitStack() as running:
        for key in ("one", "two"):
            await running.enter_async_context(entry.admitted(request(key), needs_key=False))
        with pytest.raises(Refusal, match="has its share"):
            await running.enter_async_context(entry.admitted(request("three"), needs_key=False))
        await running.enter_async_context(entry.admitted(request("three")))
