"""Hosts and ports in the forms of gRPC, URLs and sockets."""

import re

import pytest

from pagantic_common.domain.addresses import address_of, bare_host, caller_address
from tests.support.pages import ROOT, is_ours

FORMS = [
    ("127.0.0.1", "127.0.0.1", "127.0.0.1:7"),
    ("localhost", "localhost", "localhost:7"),
    ("tools.example", "tools.example", "tools.example:7"),
    ("::1", "::1", "[::1]:7"),
    ("[::1]", "::1", "[::1]:7"),
    ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:1", "[0:0:0:0:0:0:0:1]:7"),
    ("fe80::1%eth0", "fe80::1%eth0", "[fe80::1%eth0]:7"),
    ("::ffff:10.0.0.1", "::ffff:10.0.0.1", "[::ffff:10.0.0.1]:7"),
    ("::", "::", "[::]:7"),
    ("[::]", "::", "[::]:7"),
    ("unix:/run/tools", "unix:/run/tools", "unix:/run/tools:7"),
]
# A join of this form breaks an IPv6 address.
PLAIN_JOIN = re.compile(r"""f["'][^"']*host[\w.\[\]]*\}:\{""")


@pytest.mark.parametrize(("host", "bare", "address"), FORMS)
def test_an_ipv6_address_has_brackets_before_a_port_and_none_alone(host, bare, address):
    assert (bare_host(host), address_of(host, 7)) == (bare, address)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])  # noqa: S104
def test_a_server_that_listens_everywhere_is_called_on_this_machine(host):
    assert caller_address(host, 7) == "127.0.0.1:7"
    assert caller_address("[::1]", 7) == caller_address("::1", 7) == "[::1]:7"


def test_hosts_and_ports_are_joined_in_one_place():
    sources = (
        path for room in ("services", "gateway", "pagantic_common", "deploy") for path in (ROOT / room).rglob("*.py")
    )
    joined = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in filter(is_ours, sources)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if PLAIN_JOIN.search(line)
    ]
    assert not joined
