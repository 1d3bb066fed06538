"""Hosts and origins of requests."""

import pytest
from starlette.requests import Request

from gateway.http.settings import HttpSettings
from gateway.web.entry import LOCAL_NAMES, Entry, host_name_of, is_known_host, is_known_origin
from gateway.web.refusal import Refusal


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
    entry = Entry(HttpSettings(host=host, port=8080, auth="none"))
    entry.check(Request({"type": "http", "headers": [(b"host", header.encode())]}))
    with pytest.raises(Refusal):
        entry.check(Request({"type": "http", "headers": [(b"host", b"[fd00::6]:8080")]}))


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
