"""What all tests share."""

import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from tests.support import run_progress
from tests.support.examples import examples
from tests.support.needs import (
    POSTGRESQL,
    TIME_FOR_CONSOLE,
    TIME_FOR_TERMINAL,
    TIME_FOR_THE_WHOLE,
    skip_without,
    skipped_lines,
)
from tests.support.postgres import find_programs, running_postgres

ROOT = Path(__file__).parents[1]

# The settings file of whoever runs the tests is none of theirs.
os.environ["PAGANTIC_SETTINGS_FILE"] = "none"
# Each worker process takes half a second of a processor to start, in hundreds of services. Tests of several workers ask
# for them.
os.environ |= {"PAGANTIC_CONSTRAINT_WORKERS": "1", "PAGANTIC_CONTEXT_WORKERS": "1"}
# Spinning threads of an engine in this process take the processor from other tests. Services choose for themselves.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# A background job of a shell ignores SIGINT, and so would the programs that tests start. A `preexec_fn` that undid this
# would fork, which may abort the child beside threads of gRPC.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The markers of tests that `make test` leaves out, each with the variable that lets them run.
LEFT_OUT = {
    "whole": ("PAGANTIC_TEST_WHOLE", TIME_FOR_THE_WHOLE),
    "whole_console": ("PAGANTIC_TEST_CONSOLE", TIME_FOR_CONSOLE),
    "whole_terminal": ("PAGANTIC_TEST_TERMINAL", TIME_FOR_TERMINAL),
}

settings.register_profile("shared machine", deadline=None, max_examples=examples(100))  # a busy machine is no failure
settings.load_profile("shared machine")

# Modules and tests are many objects and no garbage: collections at the default thresholds take a quarter of the time in
# which tests are found.
gc.set_threshold(50_000, 20, 20)

# jsonschema imports this package for the format `iri`, which it judges in no test. The import compiles 38 grammars, and
# takes each worker 1.5 s.
sys.modules["rfc3987_syntax"] = None

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


def pytest_addoption(parser):
    run_progress.add_options(parser)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(run_progress.RunProgress(config))


def pytest_collection(session):
    """Import the test modules, each worker in an order of its own.

    In a clean clone each module is compiled by the worker that comes to it first, where all workers would compile all
    modules at the same time.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    given = [ROOT / argument.partition("::")[0] for argument in session.config.args]
    files = {file for path in given for file in ([path] if path.is_file() else path.glob("**/test_*.py"))}
    paths = sorted(file.relative_to(ROOT).with_suffix("") for file in files)
    first = len(paths) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in paths[first:] + paths[:first]:
        with suppress(BaseException):  # The collection reports an error, and skips what is not to be imported.
            importlib.import_module(".".join(path.parts))


def pytest_collection_modifyitems(items):
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.support.run_units import spread  # noqa: PLC0415 - pytest-xdist may be missing

        spread(items)


def pytest_collection_finish():
    gc.freeze()  # no collection visits the modules and the tests again


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.run_units import UnitScheduling  # noqa: PLC0415 - pytest-xdist may be missing

    return UnitScheduling(config, log)


def pytest_runtest_setup(item):
    for marker, (variable, need) in LEFT_OUT.items():
        if item.get_closest_marker(marker) and not os.environ.get(variable):
            skip_without(need)


def pytest_terminal_summary(terminalreporter):
    """Say what did not run here, and how it would."""
    for line in skipped_lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)
