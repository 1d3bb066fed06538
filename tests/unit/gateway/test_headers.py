"""Hosts and origins of requests."""

import pytest

from gateway.web.entry import LOCAL_NAMES, host_name_of, is_known_host, is_known_origin


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
        ("http://localhost:5173", True),
        ("https://[::1]", True),
        ("http://localhost@evil.example", False),
        ("http://evil.example/localhost", False),
        ("file://localhost", False),
        ("null", False),
        ("http://[", False),
        ("https://page.example", True),
        ("https://page.example:444", False),
    ],
)
def test_pages_of_known_hosts_and_listed_origins_may_call(origin, is_known):
    assert is_known_origin(origin, LOCAL_NAMES, ["https://page.example"]) is is_known
