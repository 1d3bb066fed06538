"""What all tests share."""

import pytest

from pagantic_common.telemetry.tracing import set_up_tracing
from tests.support.postgres import find_programs, running_postgres


@pytest.fixture(scope="session", autouse=True)
def tracing():
    """Spans have ids, as in every service."""
    set_up_tracing("test", "")


@pytest.fixture(scope="session")
def postgres():
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed here: Debian's package is called postgresql")
    with running_postgres(programs) as url:
        yield url
