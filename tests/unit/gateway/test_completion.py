"""What the Tab key offers for a line: commands, options, words, and the names of a running system."""

from __future__ import annotations

import socket
import threading

import pytest
import typer
from typer._completion_classes import BashComplete

from gateway.cli import completion
from gateway.cli.completion import read_bash_line
from gateway.cli.main import app
from pagantic.common.v1 import message_pb2
from pagantic.context.v1 import collection_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import models_folder
from tests.unit.client.scripted_orchestrator import ScriptedCollections, ScriptedOrchestrator, serving
from tests.unit.models.test_folder import publish

NAMES = {"models": "model", "tools": "tool", "sessions": "a", "collections": "collection", "executions": "r1"}


class Orchestrator(ScriptedOrchestrator):
    """Has a model and a tool too."""

    async def ListModels(self, _request, _context):
        return pb.ListModelsResponse(models=[message_pb2.ModelInfo(name="model")])

    async def ListTools(self, _request, _context):
        return pb.ListToolsResponse(tools=[pb.CallableTool(definition=message_pb2.ToolDefinition(name="tool"))])


@pytest.fixture(scope="module")
def address():
    with serving(Orchestrator(), ScriptedCollections(collection_pb2.Collection(name="collection"))) as served:
        yield served


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No system runs, and no model is pulled."""
    monkeypatch.setenv("PAGANTIC_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("PAGANTIC_MODELS_FOLDER", str(tmp_path))


@pytest.fixture
def system(address, monkeypatch):
    monkeypatch.setenv("PAGANTIC_ADDRESS", address)
    for limit in ("CONNECT_S", "ANSWER_S"):
        monkeypatch.setattr(completion, limit, 30)


def items_after(*words, last=""):
    shell = BashComplete(typer.main.get_command(app), {}, "pagantic", completion.VARIABLE)
    return {item.value: item.help for item in shell.get_completions([*words], last)}


def words_after(*words, last=""):
    return list(items_after(*words, last=last))


def test_commands_follow_the_program_and_its_groups():
    assert {"chat", "status", "sessions", "eval"} <= set(words_after())
    assert set(words_after("sessions")) == {"list", "show", "delete"}
    assert items_after()["down"] == "Stop every service."


def test_options_follow_a_dash_and_one_that_was_given_is_left_out():
    options = words_after("chat", last="--")
    assert {"--model", "--json", "--help"} <= set(options)
    assert "-h" in words_after("chat", last="-")
    left = words_after("chat", "--model", "m", "--stop", "a", last="-")
    assert "--model" not in left
    assert "--stop" in left  # it is repeatable
    assert words_after("chat", "--", last="-") == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("chat --reasoning", "off"),
        ("chat hi --tool-choice", "required"),
        ("vote --strategy", "unanimity"),
        ("ask kb --retriever", "bm25"),
        ("executions --state", "COMPLETE"),
        ("executions --mode", "CHAT"),
        ("fit a b --method", "isotonic"),
        ("budgets set t --per", "month"),
        ("keys create k --scopes", "usage"),
        ("logs", "inference"),
        ("pull", "smollm2:135m"),
    ],
)
def test_words_that_a_parameter_takes_are_offered(line, word):
    assert word in words_after(*line.split())


def test_a_value_may_follow_an_equals_sign():
    assert words_after("vote", last="--strategy=un") == ["unanimity"]


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("chat --model", "models"),
        ("chat --session", "sessions"),
        ("chat --tool clock --tool", "tools"),
        ("chat --context", "collections"),
        ("sessions show", "sessions"),
        ("ask", "collections"),
        ("ingest", "collections"),
        ("verify", "collections"),
        ("collections reembed", "collections"),
        ("timeline", "executions"),
        ("show --json", "executions"),
        ("replay", "executions"),
        ("approvals approve", "executions"),
        ("models load", "models"),
        ("eval suite.yaml --model", "models"),
    ],
)
@pytest.mark.usefixtures("system")
def test_names_of_the_system_are_offered(line, source):
    assert words_after(*line.split()) == [NAMES[source]]


def test_names_of_pulled_models_are_offered_without_a_system():
    assert words_after("rm") == []
    publish(ModelFolder(models_folder()), "mine:1b")
    assert words_after("rm", last="mi") == ["mine:1b"]


@pytest.mark.parametrize(
    "line", ["run", "chat --image", "structured --schema", "ingest kb", "eval run", "ask kb", "chat"]
)
@pytest.mark.usefixtures("system")
def test_where_a_file_or_a_text_is_meant_nothing_is_offered(line):
    assert words_after(*line.split()) == []


@pytest.mark.usefixtures("system")
def test_an_id_that_names_something_new_is_not_offered():
    assert words_after("chat", "--request-id") == []
    assert words_after("replay", "r1", "--id") == []


def test_the_command_that_may_be_left_out_has_its_options_offered():
    assert "--limit" in words_after("eval", last="--")
    assert "--limit" in words_after("eval", "suite.yaml", last="--")


def test_words_that_lead_nowhere_offer_nothing():
    assert words_after("chat", last="--nonsense=") == []
    assert words_after("status", "superfluous", "words") == []


def test_a_name_whose_look_up_hangs_is_not_waited_for(monkeypatch):
    ended, hanging = threading.Event(), threading.Event()

    def look_up(*_, **_kept):
        hanging.wait(30)
        ended.set()
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setenv("PAGANTIC_ADDRESS", "slow.example:1")
    try:
        assert words_after("chat", "--model") == []
        assert not ended.is_set()
    finally:
        hanging.set()
        ended.wait(30)


def line_of(*parts):
    return read_bash_line({"COMP_WORDS": "\n".join(("pagantic", *parts)), "COMP_CWORD": str(len(parts))})


def test_words_that_bash_has_split_are_joined():
    assert line_of("chat", "--model", "=", "qw") == (["chat"], "--model=qw")
    assert line_of("pull", "qwen2.5-coder", ":", "0") == (["pull"], "qwen2.5-coder:0")
    assert line_of("pull", "qwen2.5-coder", ":") == (["pull"], "qwen2.5-coder:")
    assert line_of("chat", "") == (["chat"], "")
    assert line_of() == ([], "")


@pytest.mark.parametrize("environment", [{}, {"COMP_WORDS": "pagantic", "COMP_CWORD": "7"}, {"COMP_CWORD": "x"}])
def test_a_line_that_makes_no_sense_is_an_empty_one(environment):
    assert read_bash_line(environment)[1] == ""
