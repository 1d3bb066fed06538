"""`pagantic mcp` before the real system, used by the TypeScript SDK's client over both transports."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.support.live_requests import ingest
from tests.support.node_packages import installed

NODE = Path(__file__).parent / "node_mcp"
COMMAND = [sys.executable, "-m", "gateway.cli.main", "mcp"]


@pytest.fixture(scope="session")
def typescript_client():
    return installed(NODE) / "client.mjs"


@contextmanager
def serving_http(system):
    command = [*COMMAND, "--http", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=system.environment, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        yield line.split()[1].rstrip(";")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM), process.stderr.read()


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_typescript_client_uses_tools_resources_and_prompts(system, typescript_client, transport):
    ingest(system.address("context"))
    if transport == "stdio":
        done = system.run("node", typescript_client, "stdio", *COMMAND)
    else:
        with serving_http(system) as url:
            done = system.run("node", typescript_client, "http", url)
    seen = json.loads(done.stdout)
    assert seen["tools"][:4] == ["ask", "extract", "vote", "plan"]
    assert seen["calculated"]["content"][0]["text"] == "391"
    assert seen["extracted"]["structuredContent"]["color"] in ("red", "green", "blue")
    assert seen["asked"]["_meta"]["pagantic/request_id"]
    assert seen["reports"] == sorted(set(seen["reports"]))
    assert seen["reports"]
    assert seen["ended"] == "cancelled"
    assert seen["wrong"]["isError"]
    assert seen["resources"]
    assert seen["prompts"] == []
