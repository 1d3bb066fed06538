"""From nothing to a system, by `pagantic init` and `pagantic up`; and this version on the state of the first one.

tests/golden/state-8ae39a56 was written by the code of that commit, the first with a README, to which nothing had
migrations: two turns of the session ana, a chat that calls the calculator, a structured answer, one that failed, an
execution whose orchestrator was killed, and a collection of two documents. tests/golden/pulled-model was made by
`pagantic pull` of version 0.1.0: a model without weights, and what was noted of it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client
from tests.e2e.conftest import ROOT
from tests.e2e.test_terminal import Terminal

pytestmark = pytest.mark.timeout(400)  # the first one that runs starts a system

STATE = ROOT / "tests" / "golden" / "state-8ae39a56"
PULLED = ROOT / "tests" / "golden" / "pulled-model"
TEN_YEARS_S = 10 * 365 * 86_400
ENDED = {"turn-1", "turn-2", "tool", "color", "cut"}


class Folder:
    """A user's working folder with a shell in it, in which no variable of pagantic is set but for two folders."""

    def __init__(self, path):
        self.path = path
        self.state = path / "my data"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGANTIC_")} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": str(path / "state-home"),
            "XDG_CONFIG_HOME": str(path / "config-home"),
            "COLUMNS": "200",
        }

    def run(self, *command, check=True):
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli.main", *map(str, command)],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def add(self, *lines):
        with (self.path / "pagantic.env").open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))


def first_of_free_ports(count):
    """The first of so many ports that follow each other, below those that the system gives to others."""
    for first in range(20000 + os.getpid() % 1000 * 10, 32000, 10):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("there are no free ports")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Answers the questions of `pagantic init` for the state of the first version, and starts this one on it."""
    folder = Folder(tmp_path_factory.mktemp("start"))
    shutil.copytree(STATE, folder.state)
    shutil.copytree(PULLED, folder.path / "pulled")
    try:
        start(folder, first_of_free_ports(7))
        yield folder
    finally:
        folder.run("down")


def start(folder, first):
    command = f"cd '{folder.path}' && pagantic init --first-port {first} --http-port {first + 6}"
    terminal = Terminal(folder, "sh", "-c", command)
    try:
        terminal.wait_for(r"Model: .*\]: ")
        terminal.type("smolm2\n")
        terminal.wait_for("did you mean smollm2:135m")
        terminal.wait_for(r"Model: .*\]: ")
        terminal.type("\n")
        terminal.wait_for(r"Folder .*\]: ")
        terminal.type(f"{folder.state}\n")
        terminal.wait_for("API key")
        terminal.type("\n")
        terminal.wait_for("next: pagantic up")
        terminal.end()
    finally:
        os.close(terminal.file)  # a command that still asks ends by this
    # Ended executions would otherwise be purged at the start: they are older than a day.
    folder.add(f"PAGANTIC_ORCHESTRATOR_RETENTION_S={TEN_YEARS_S}", f"PAGANTIC_MODELS_FOLDER={folder.path / 'pulled'}")
    folder.address = f"127.0.0.1:{first}"
    assert folder.run("up").stdout.startswith(f"settings of {folder.path / 'pagantic.env'}\n")


@pytest.fixture(scope="module")
def client(folder):
    with Client(folder.address) as opened:
        yield opened


def test_up_finds_the_settings_file_and_starts_the_console_too(folder):
    checks = {check["check"]: check for check in json.loads(folder.run("doctor", "--json").stdout)["checks"]}
    assert checks["settings"]["found"].startswith(f"{folder.path / 'pagantic.env'} with ")
    url = checks["http"]["found"].removeprefix("serving on ")
    with urllib.request.urlopen(f"{url}/", timeout=30) as page:  # noqa: S310 - http://
        assert b"<title>" in page.read()


def test_executions_of_the_first_version_are_there_with_their_answers_and_timelines(client):
    listed = {one.request_id: one for one in client.list_executions()}
    assert ENDED | {"interrupted"} <= listed.keys()
    ends = {listed[request_id].state.current for request_id in ENDED - {"cut"}}
    assert ends == {execution_pb2.LIFECYCLE_STATE_COMPLETE}
    assert listed["cut"].state.current == execution_pb2.LIFECYCLE_STATE_ERROR
    assert client.get_execution("tool").response.tool_calls_made[0].result == "391"
    assert client.get_execution("cut").response.error.code == error_pb2.ERROR_CODE_CONSTRAINT_SCHEMA_INVALID
    assert client.get_execution("interrupted").interrupted
    assert "EXECUTE -> COMPLETE: answered" in str(client.timeline("turn-2"))


def test_a_request_of_the_first_version_is_answered_by_what_it_stored(client):
    request = {
        "request_id": "color",
        "mode": "MODE_STRUCTURED",
        "messages": [{"role": "ROLE_USER", "content": "Which color is a ripe tomato?"}],
        "output": {
            "schema_json": '{"type": "object", "properties": {"color": {"enum": ["red", "green", "blue"]}}, '
            '"required": ["color"], "additionalProperties": false}'
        },
        "hints": {"max_tokens": 60, "temperature": 0},
    }
    response = client.execute(ParseDict(request, execution_pb2.SystemRequest()))
    assert response.content == '{"color": "red"}'
    assert response.token_usage.tokens_per_second == pytest.approx(136.31441447028985)


def test_a_session_of_the_first_version_goes_on(folder, client):
    before = client.get_session("ana").messages
    assert [message.content for message in before][::2] == ["My name is Ana. Say hello.", "What is my name?"]
    folder.run("chat", "And now?", "--session", "ana", "--max-tokens", "4")
    after = client.get_session("ana").messages
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2


def test_a_collection_of_the_first_version_is_searched_and_added_to(client, tmp_path):
    found = client.retrieve("handbook", "How many days of vacation are there?")
    assert "30 days" in found[0].content
    (tmp_path / "bicycles.md").write_text("Bicycles\n\nBicycles stand in the yard.\n", encoding="utf-8")
    client.ingest_files("handbook", [tmp_path / "bicycles.md"])
    assert client.get_collection("handbook").document_count == 3
    assert "yard" in client.retrieve("handbook", "bicycles")[0].content


def test_a_pulled_model_of_its_first_version_is_listed(folder):
    models = json.loads(folder.run("models", "--json").stdout)["models"]
    (tiny,) = [model for model in models if model["name"] == "tiny"]
    assert tiny["context_window"] == 2048


def test_a_wrong_line_of_the_settings_file_is_named_by_every_command(tmp_path):
    folder = Folder(tmp_path)
    folder.add("# mine", "PAGANTIC_ADRESS=127.0.0.1:1")
    place = f"{tmp_path / 'pagantic.env'}:2: "
    done = folder.run("chat", check=False)
    assert done.returncode == 3
    assert f"{place}PAGANTIC_ADRESS: no such setting; did you mean PAGANTIC_ADDRESS?" in done.stderr
    (tmp_path / "pagantic.env").write_text("PAGANTIC_INFERENCE_THREADS=many\n", encoding="utf-8")
    done = folder.run("up", check=False)
    assert done.returncode == 3
    assert f"{tmp_path / 'pagantic.env'}:1: PAGANTIC_INFERENCE_THREADS: " in done.stderr
    assert not (tmp_path / "state-home" / "pagantic" / "logs").exists()
