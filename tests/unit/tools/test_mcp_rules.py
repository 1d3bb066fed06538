"""The rules about Model Context Protocol servers: names, allowlists, safety, waits."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import check_tool_name
from pagantic_common.domain.messages import ToolSafety
from services.tools.core.allowlists import HostAllowlist, ProgramAllowlist
from services.tools.core.remote_names import prefixed_name
from services.tools.core.servers import HttpTransport, ProgramTransport, ToolHints, check_server_name


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", fullmatch=True), st.text(max_size=300))
def test_every_prefixed_name_is_a_tool_name_and_the_same_again(server, tool):
    name = prefixed_name(server, tool)
    check_tool_name(name)
    assert name == prefixed_name(server, tool)


def test_long_names_that_begin_alike_differ():
    assert prefixed_name("s", "x" * 100 + "a") != prefixed_name("s", "x" * 100 + "b")
    assert prefixed_name("files", "read.text/all") == "files_read_text_all"


@pytest.mark.parametrize("name", ["", "-a", "a b", "a" * 33, "ä", "a\n"])
def test_a_server_name_that_no_tool_could_begin_with_is_refused(name):
    with pytest.raises(InvalidRequest, match="server name"):
        check_server_name(name)


@pytest.mark.parametrize(
    ("hints", "safety"),
    [
        (ToolHints(), ToolSafety.EXTERNAL),
        (ToolHints(is_read_only=True), ToolSafety.READ),
        (ToolHints(is_destructive=False), ToolSafety.EXTERNAL),
        (ToolHints(is_open_world=False), ToolSafety.EXTERNAL),
        (ToolHints(is_destructive=False, is_open_world=False), ToolSafety.WRITE),
    ],
)
def test_hints_become_the_least_safety_that_they_allow(hints, safety):
    assert hints.safety is safety


@pytest.mark.parametrize(
    ("entry", "host", "port", "is_allowed"),
    [
        ("api.example.com", "API.example.com.", 443, True),
        ("api.example.com", "example.com", 443, False),
        ("api.example.com:443", "api.example.com", 8443, False),
        ("127.0.0.1:3001", "127.0.0.1", 3001, True),
        ("127.0.0.1:3001", "127.0.0.1", 3002, False),
        ("[::1]:3001", "::1", 3001, True),
        ("::1", "[0:0:0:0:0:0:0:1]", 80, True),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("fd00::/8", "fd12::1", 80, True),
    ],
)
def test_hosts_are_allowed_by_name_address_port_and_network(entry, host, port, is_allowed):
    assert HostAllowlist.parse([entry]).has_host(host, port) is is_allowed


@pytest.mark.parametrize(
    "entry", ["", "*.example.com", "http://a", "a:0", "a:x", "10.0.0.1/8", "a b", "a:70000", "u@a"]
)
def test_an_entry_that_is_no_host_is_refused(entry):
    with pytest.raises(InvalidRequest):
        HostAllowlist.parse([entry])


PRIVATE = [
    *("10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "224.0.0.1", "100.64.0.1", "240.0.0.1"),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1", "192.88.99.1", "fec0::1", "5f00::1"),
]


def may(hosts, name, address, port=443):
    return hosts.has_address(name, port, ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_does_not_lead_to_a_private_address_that_is_not_allowed(address):
    assert not may(HostAllowlist.parse(["inner.example"]), "inner.example", address)
    assert may(HostAllowlist.parse(["inner.example", address]), "inner.example", address)
    assert may(HostAllowlist().with_inner_hosts(("inner.example", 443)), "inner.example", address)
    assert not may(HostAllowlist().with_inner_hosts(("inner.example", 80)), "inner.example", address)


def test_a_name_leads_to_public_addresses():
    assert may(HostAllowlist.parse(["a.example"]), "a.example", "93.184.216.34")


def test_a_program_is_allowed_with_the_first_arguments_of_its_entry():
    allowed = ProgramAllowlist((("npx", "-y", "server"), ("cat",)))
    assert allowed.has(("npx", "-y", "server", "--verbose"))
    assert not allowed.has(("npx", "-y", "other"))
    assert not allowed.has(("npx",))
    assert allowed.has(("cat", "anything"))
    assert not allowed.has(("/bin/cat",))
    assert not ProgramAllowlist().has(("cat",))


def test_what_may_be_secret_is_neither_listed_nor_printed():
    http = HttpTransport.parse("https://api.example.com/mcp?key=s3cret")
    program = ProgramTransport(("server", "--token", "s3cret"), {"TOKEN": "s3cret"})
    for text in (http.describe(), repr(http), program.describe(), repr(program)):
        assert "s3cret" not in text
    assert (http.describe(), program.describe()) == ("api.example.com:443", "server")
