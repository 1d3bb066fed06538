"""Hosts, origins and peers of requests."""

import pytest

from gateway.web.entry import LOCAL_NAMES, host_name_of, is_known_host, is_known_origin
from gateway.web.listening import peer_of


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
