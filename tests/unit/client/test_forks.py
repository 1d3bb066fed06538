"""Clients of programs that fork: each call in the child works, or fails at once with the reason."""

import subprocess
import sys

import pytest

from tests.support import forking_program
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving

REFUSED = "PreconditionFailed: this process was forked from a process that"


@pytest.fixture(scope="module")
def address():
    with serving(ScriptedOrchestrator()) as at:
        yield at


@pytest.mark.parametrize(
    ("scenario", "lines"),
    [
        ("unused", ["child: hello", "child: hello", "child: closed", "parent: hello"]),
        ("closed_unused", ["child: closed", "child: PreconditionFailed: the client was closed", "parent: hello"]),
        ("used", ["parent: hello", f"child: {REFUSED}", "child: closed", "parent: hello"]),
        ("made_by_child", ["parent: hello", f"child: {REFUSED}", f"child: {REFUSED}", "parent: hello"]),
        ("freed", ["parent: hello", "child: freed True", "parent: hello"]),
        ("streaming", ["parent: hel", f"child: {REFUSED}", "child: left True", "child: closed", "parent: hello"]),
        ("asyncio_unused", ["child: hello", "parent: hello"]),
        ("asyncio_used", ["parent: hello", f"child: {REFUSED}", "child: None", "parent: hello"]),
        ("asyncio_same_loop", ["parent: hello", f"child: {REFUSED}"]),
        ("grandchild", [f"child: {REFUSED}", "child: hello hello"]),
        ("threads", ["child: ['hello']"]),
        ("stuck", [f"child: {REFUSED}"]),
        ("encrypted", ["child: Unreachable: the orchestrator service"]),
        ("pool", ["child: ['hello']", "parent: hello", f"child: ['{REFUSED}"]),
    ],
)
def test_a_child_calls_or_says_why_not_and_the_parent_calls_on(address, scenario, lines):
    command = [sys.executable, "-m", forking_program.__name__, scenario, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen = done.stdout.splitlines()
    assert len(seen) == len(lines), done.stdout + done.stderr
    for line, start in zip(seen, lines, strict=True):
        assert line.startswith(start)
    assert "Traceback" not in done.stderr
