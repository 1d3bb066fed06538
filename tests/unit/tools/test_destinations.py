from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolFailed
from services.tools.core.destinations import Allowlist, Destination, is_public, parse_allowed_host


def allow(*entries):
    return Allowlist(tuple(map(parse_allowed_host, entries)))


@pytest.mark.parametrize(
    ("entry", "scheme", "host", "port"),
    [
        ("example.com", "https", "example.com", 443),
        ("Example.COM:8443", "https", "example.com", 8443),
        ("http://example.com", "http", "example.com", 80),
        ("*.example.com", "https", "a.b.example.com", 443),
        ("http://10.0.0.7:8080", "http", "10.0.0.7", 8080),
        ("[2606:4700:0::1111]", "https", "2606:4700::1111", 443),
    ],
)
def test_an_entry_covers_its_own_scheme_host_and_port(entry, scheme, host, port):
    allow(entry).check_host(Destination(scheme, host, port))
    for other in (
        Destination({"http": "https", "https": "http"}[scheme], host, port),
        Destination(scheme, "evil.test", port),
        Destination(scheme, host, 1),
    ):
        with pytest.raises(ToolFailed, match="are not permitted"):
            allow(entry).check_host(other)


@pytest.mark.parametrize("host", ["example.com", ".example.com", "notexample.com", "example.com.evil.test"])
def test_a_pattern_covers_only_names_below_it(host):
    with pytest.raises(ToolFailed):
        allow("*.example.com").check_host(Destination("https", host, 443))


@pytest.mark.parametrize("entry", ["", "*", "*.", "a b", "user@host", "host:0", "host:65536", "ftp://host", "h/path"])
def test_what_is_no_host_is_refused(entry):
    with pytest.raises(ValueError, match=r"is not a host|above 65535"):
        parse_allowed_host(entry)


@pytest.mark.parametrize(
    "address",
    [
        *("0.1.2.3", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1"),
        *("192.0.2.1", "192.88.99.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::7f00:1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "2001::1"),
        *("2001:db8::1", "2002:a00:1::", "3fff::1", "5f00::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1"),
    ],
)
def test_addresses_that_are_not_of_the_internet_are_refused_unless_named(address):
    parsed = ipaddress.ip_address(address)
    assert not is_public(parsed)
    target = Destination("https", "example.com", 443)
    with pytest.raises(ToolFailed, match="not public"):
        allow("example.com").check_addresses(target, [ipaddress.ip_address("1.1.1.1"), parsed])
    named = address if parsed.version == 4 else f"[{address}]"
    allow("example.com", named).check_addresses(target, [parsed])
    with pytest.raises(ToolFailed, match="not public"):
        allow("example.com", f"http://{named}").check_addresses(target, [parsed])


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "::ffff:8.8.8.8", "2606:4700::1111"])
def test_addresses_of_the_internet_are_permitted(address):
    assert is_public(ipaddress.ip_address(address))


@given(st.integers(0, 2**32 - 1))
def test_an_address_inside_ipv6_counts_as_itself_or_is_refused(number):
    inner = ipaddress.IPv4Address(number)
    assert is_public(ipaddress.IPv6Address(0xFFFF << 32 | number)) == is_public(inner)
    for prefix in (0, 0x64FF9B << 96, 0x2002 << 112 | number << 80):
        assert not is_public(ipaddress.IPv6Address(prefix | number))
