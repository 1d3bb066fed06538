"""Our client passes the official suite: a sample of its scenarios; `make conformance` runs them all."""

import pytest

from tests.conformance import client, suite

SAMPLE = [
    ("initialize", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("auth/scope-step-up", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("auth/authorization-server-migration", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
]


@pytest.mark.parametrize(("scenario", "revision"), SAMPLE)
def test_our_client_passes_the_scenario(scenario, revision):
    suite.install()
    outcome = client.run_suite("--scenario", scenario, "--spec-version", revision)
    assert outcome.is_passed, outcome.text[-4000:]
