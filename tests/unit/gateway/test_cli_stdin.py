"""Texts come from arguments, files and stdin."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from gateway.cli import options
from gateway.cli.main import app
from gateway.cli.output import UsageError
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving

REQUEST = '{"mode": "MODE_CHAT", "messages": [{"content": "two\\nlines"}]}'


@pytest.fixture
def orchestrator():
    return ScriptedOrchestrator()


@pytest.fixture
def invoke(orchestrator):
    with serving(orchestrator) as address:
        yield lambda *arguments, **kept: CliRunner().invoke(
            app, list(arguments), env={"PAGANTIC_ADDRESS": address}, **kept
        )


@pytest.fixture
def commands(tmp_path):
    """The commands that take a text, and what each needs besides."""
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object"}', encoding="utf-8")
    return (
        ("chat",),
        ("ask", "kb", "--retriever", "bm25"),
        ("structured", "--schema", str(path)),
        ("vote", "--schema", str(path)),
        ("plan",),
        ("run",),
    )


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_every_command_that_takes_a_text_reads_a_pipe_as_a_whole(invoke, orchestrator, commands, dash):
    for command in commands:
        text = REQUEST if command == ("run",) else "two\nlines"
        result = invoke(*command, *dash, input=text)
        assert result.exit_code == 0, (command, result.output)
        request = orchestrator.requests.pop()
        assert request.messages[-1].content == "two\nlines", command


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_an_empty_pipe_is_wrong_usage(invoke, orchestrator, commands, dash):
    for command in commands:
        result = invoke(*command, *dash, input="")
        assert (result.exit_code, result.stderr[:6]) == (2, "USAGE:"), command
    assert orchestrator.requests == []


def test_a_text_that_is_no_utf_8_or_too_long_is_told(invoke, orchestrator, commands):
    for command in commands:
        most, hint = (8_388_608, "pagantic run FILE") if command == ("run",) else (MAX_MESSAGE_BYTES, "pagantic ingest")
        long = f"more than {most} bytes: `{hint}`"
        for text, words in ((b"caf\xe9", "not UTF-8"), (b"a" * (most + 1), long)):
            result = invoke(*command, input=text)
            assert (result.exit_code, words in result.stderr) == (2, True), command
    assert orchestrator.requests == []
    assert invoke("chat", "--lines", input=b"caf\xe9\n").exit_code == 2


def test_a_closed_stdin_is_told(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    for argument in (None, "-"):
        with pytest.raises(UsageError):
            options.read_text(argument)


def test_options_of_one_turn_are_refused_in_a_conversation(invoke, orchestrator):
    for given in (["--request-id", "r"], ["--json"]):
        result = invoke("chat", "--lines", *given, input="hi\n")
        assert (result.exit_code, "belongs to one turn" in result.stderr) == (2, True)
    assert invoke("chat", "hi", "--lines").exit_code == 2
    assert orchestrator.requests == []
