"""Where the one-process host listens."""

import pytest

from deploy.local.areas import ConfigurationError
from deploy.local.host import hosted_areas


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "192.168.1.4", "myhost", "8.8.8.8"])  # noqa: S104
def test_a_port_that_serves_inner_services_is_not_for_other_machines(host):
    with pytest.raises(ConfigurationError, match="inner services"):
        hosted_areas({"PAGANTIC_ORCHESTRATOR_HOST": host})
    with pytest.raises(ConfigurationError, match="inner services"):
        hosted_areas({"PAGANTIC_HOST": host})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
def test_it_listens_on_this_machine(host):
    assert {area.host for area in hosted_areas({"PAGANTIC_HOST": host})} == {host}
