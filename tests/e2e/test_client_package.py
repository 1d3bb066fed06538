"""`pip install pagantic` without extras: the client and its commands work with no package that only servers need."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from tests.support.environments import build_wheel, link_files

SERVER_ONLY = (
    "alembic",
    "llguidance",
    "mcp",
    "numpy",
    "openapi-spec-validator",
    "opentelemetry-sdk",
    "psycopg",
    "smg-grpc-proto",
    "sqlalchemy",
    "structlog",
    "supervisor",
    "textual",
)


def closure(requirements, extra=""):
    """The installed distributions that these requirements bring, without extras but for this one."""
    found = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            waiting += map(Requirement, found[name].requires or ())
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with what an installation of the wheel without extras has."""
    built, folder = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", folder, build_wheel(built)], check=True)
    (own,) = importlib.metadata.distributions(name="pagantic", path=[str(folder)])
    brought = closure(own.requires)
    assert not brought.keys() & set(SERVER_ONLY)
    for distribution in brought.values():
        link_files(distribution, folder)
    return folder


def run(site, code, *arguments):
    prelude = f"import sys; sys.path.insert(0, {str(site)!r}); "
    command = [sys.executable, "-I", "-S", "-c", prelude + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=site)


def test_the_client_is_imported_without_the_servers_packages(site):
    done = run(site, "from pagantic_common.client import AsyncClient, Client; Client().close()")
    assert done.returncode == 0, done.stderr
    assert run(site, "import sqlalchemy").returncode == 1


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("chat", "--help"), ("sessions", "--help")])
def test_the_command_runs_without_the_servers_packages(site, arguments):
    done = run(site, "from pagantic_common.run import pagantic; pagantic()", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_request_finds_no_orchestrator_and_says_so(site):
    done = run(site, "from pagantic_common.run import pagantic; pagantic()", "chat", "hi", "--address", "127.0.0.1:1")
    assert done.returncode == 7
    assert "the orchestrator service cannot be reached" in done.stderr
    assert "next: name the system's address with `pagantic init --address HOST:PORT`" in done.stderr
    assert "pagantic up" not in done.stderr


def test_doctor_checks_what_a_client_needs(site):
    done = run(site, "from pagantic_common.run import pagantic; pagantic()", "doctor")
    assert "installation: the client alone" in done.stdout
    assert "orchestrator: " in done.stdout
    assert "engine" not in done.stdout


def test_a_client_is_set_up_for_a_system_elsewhere(site, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    command = "from pagantic_common.run import pagantic; pagantic()"
    refused = run(site, command, "init", "--user", "--model", "smollm2:135m")
    assert refused.returncode == 2
    assert "pip install 'pagantic[server]'" in refused.stderr
    assert run(site, command, "init", "--user", "--address", "127.0.0.1:1").returncode == 0
    monkeypatch.delenv("PAGANTIC_SETTINGS_FILE")
    checks = run(site, command, "doctor").stdout
    assert f"settings: {tmp_path / 'pagantic' / 'pagantic.env'} with 1 setting" in checks
    assert "orchestrator: nothing listens on 127.0.0.1:1" in checks


def test_serving_clients_of_the_protocol_says_what_to_install(site):
    done = run(site, "from pagantic_common.run import pagantic; pagantic()", "mcp")
    assert done.returncode == 2
    assert "pip install 'pagantic[mcp]'" in done.stderr


def test_starting_services_says_what_to_install(site):
    done = run(site, "from pagantic_common.run import pagantic; pagantic()", "up")
    assert done.returncode == 2
    assert "pip install 'pagantic[server]'" in done.stderr


OPEN = """
import asyncio
import time
from pagantic.gateway.tui.app import TerminalApp
from pagantic_common.client import AsyncClient

async def main():
    app = TerminalApp(AsyncClient("127.0.0.1:1"))
    async with app.run_test() as pilot:
        shown, until_s = "", time.monotonic() + 60
        while "pagantic init" not in shown and time.monotonic() < until_s:
            await pilot.pause(0.1)
            shown = " ".join(str(line.render()) for line in app.query("#transcript .failure"))
        print(shown)

asyncio.run(main())
"""


def test_the_terminal_program_opens_with_its_extra_and_without_the_servers_packages(site, tmp_path):
    folder = shutil.copytree(site, tmp_path / "site", symlinks=True)
    (own,) = importlib.metadata.distributions(name="pagantic", path=[str(folder)])
    brought = closure(own.requires, extra="tui")
    assert "textual" in brought
    assert brought.keys() & set(SERVER_ONLY) == {"textual"}
    for distribution in brought.values():
        link_files(distribution, folder)
    done = run(folder, "exec(sys.argv[1])", OPEN)
    assert done.returncode == 0, done.stderr
    assert "pagantic init --address" in done.stdout
    assert "pagantic up" not in done.stdout
