"""What all tests share."""

import os
import time

import pytest
import structlog
from hypothesis import settings

from tests.support.needs import POSTGRESQL, skip_without, skipped_lines
from tests.support.postgres import find_programs, running_postgres

LIMIT = "PAGANTIC_TEST_LIMIT_S"
STARTED_S = time.monotonic()

# The settings file of whoever runs the tests is none of theirs.
os.environ["PAGANTIC_SETTINGS_FILE"] = "none"

settings.register_profile("shared machine", deadline=None)  # a busy machine is no failure
settings.load_profile("shared machine")

# A traceback with every local variable takes seconds where an execution is among them.
structlog.configure(
    processors=[
        structlog.stdlib.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture(scope="session")
def postgres():
    programs = find_programs()
    if programs is None:
        skip_without(POSTGRESQL)
    with running_postgres(programs) as url:
        yield url


def pytest_runtest_protocol(item):
    """End a run that takes too long, so that nobody waits for what should be sampled."""
    limit_s = float(os.environ.get(LIMIT) or "inf")
    if time.monotonic() - STARTED_S > limit_s:
        item.session.shouldfail = (
            f"the tests took longer than {limit_s:g} s ({LIMIT}), and {item.nodeid} and what follows did not run: "
            "sample what is slow (see the slowest above) and run it whole in make test-whole"
        )


def pytest_terminal_summary(terminalreporter):
    """Say what did not run here, and how it would."""
    for line in skipped_lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)
