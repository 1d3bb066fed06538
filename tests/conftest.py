"""What all tests share."""

import pytest

from pagantic_common.telemetry.tracing import set_up_tracing


@pytest.fixture(scope="session", autouse=True)
def tracing():
    """Spans have ids, as in every service."""
    set_up_tracing("test", "")
