"""`python -m tests.conformance.server`: the official conformance suite against our server, both revisions."""

import argparse
import asyncio
import sys

from gateway.mcp.http.app import McpApp
from gateway.mcp.settings import McpSettings
from tests.conformance import suite
from tests.conformance.fixture.server import make_fixture
from tests.support.mcp_app import serving_app


async def run_suite(*arguments):
    """Serve the fixture, and return the outcome of the suite's server tests."""
    settings = McpSettings(drain_s=0)
    app = McpApp(make_fixture(), settings)
    async with app.running(), serving_app(app, settings) as url:
        outcome = await asyncio.to_thread(suite.run, "server", "--url", url, *arguments)
    return outcome, app


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.server", description=__doc__)
    parser.add_argument("--revision", choices=suite.REVISIONS, action="append")
    options = parser.parse_args()
    suite.install()
    is_passed = True
    for revision in options.revision or suite.REVISIONS:
        outcome, _app = asyncio.run(run_suite("--requirements", revision))
        sys.stdout.write(outcome.text)
        is_passed = is_passed and outcome.is_passed
    return 0 if is_passed else 1


if __name__ == "__main__":
    sys.exit(main())
