"""Our server passes what the official suite requires of each revision, with no list of expected failures."""

import re

import pytest

from tests.conformance import suite
from tests.conformance.server import run_suite

COUNTS = {"2025-11-25": 30, "2026-07-28": 37}


# The suite tests levels of logs, which the newer revision deprecates.
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("revision", suite.REVISIONS)
async def test_our_server_passes_every_scenario_that_a_revision_requires(revision):
    suite.install()
    outcome, app = await run_suite("--requirements", revision)
    scored, _, _not_scored = outcome.text.partition("Not scored for")
    passed = set(re.findall(r"✓ ([\w-]+):", scored))
    assert outcome.is_passed, outcome.text[-3000:]
    assert len(passed) >= COUNTS[revision]
    assert app.entry.request_count == 0
