"""`python -m tests.conformance.client`: the official conformance suite against our client, both revisions."""

import argparse
import shlex
import sys
import tempfile

from tests.conformance import suite
from tests.support.service_process import ROOT

# The suite starts a program for every scenario at once, and they wait for each other.
SCENARIO_TIMEOUT_S = 200


def run_suite(*arguments):
    """Return the outcome of the suite's client tests."""
    with tempfile.TemporaryDirectory() as folder:
        turn = [sys.executable, str(suite.FOLDER / "in_turn.py"), f"{folder}/lock"]
        client = [sys.executable, "-m", "tests.conformance.driven_client"]
        command = f"cd {shlex.quote(str(ROOT))} && {shlex.join([*turn, *client])}"
        limits = ["--timeout", str(SCENARIO_TIMEOUT_S * 1000), "-o", f"{folder}/results"]
        return suite.run("client", "--command", command, *limits, *arguments)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.client", description=__doc__)
    parser.add_argument("--revision", choices=suite.REVISIONS, action="append")
    options = parser.parse_args()
    suite.install()
    is_passed = True
    for revision in options.revision or suite.REVISIONS:
        outcome = run_suite("--requirements", revision)
        sys.stdout.write(outcome.text)
        is_passed = is_passed and outcome.is_passed
    return 0 if is_passed else 1


if __name__ == "__main__":
    sys.exit(main())
