"""The official conformance suite against our client: no scenario that a revision requires may fail."""

import pytest

from tests.conformance import client, suite


@pytest.mark.timeout(280)
@pytest.mark.parametrize("revision", suite.REVISIONS)
def test_our_client_conforms_to_the_revision(revision):
    suite.install()
    outcome = client.run_suite("--requirements", revision)
    assert outcome.is_passed, outcome.text[-4000:]
