"""Where the one-process host listens."""

import pytest

from deploy.local.areas import ConfigurationError
from deploy.local.host import SERVICES, hosted_areas


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "192.168.1.4", "myhost", "8.8.8.8"])  # noqa: S104
def test_a_port_that_serves_inner_services_is_not_for_other_machines(host):
    with pytest.raises(ConfigurationError, match="inner services"):
        hosted_areas({"PAGANTIC_ORCHESTRATOR_HOST": host})
    with pytest.raises(ConfigurationError, match="inner services"):
        hosted_areas({"PAGANTIC_HOST": host})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
def test_it_listens_on_this_machine(host):
    assert {area.host for area in hosted_areas({"PAGANTIC_HOST": host})} == {host}


def test_the_port_of_all_services_takes_what_each_of_them_takes_alone():
    """The orchestrator alone takes requests of half the size, and half of the calls from one host."""
    port = SERVICES[-1].settings(max_message_bytes=4_000_000, max_request_bytes=100_000, max_concurrent_rpcs=1000)
    assert port.max_received_bytes == 4_000_000
    assert port.max_calls_per_host == 1000
