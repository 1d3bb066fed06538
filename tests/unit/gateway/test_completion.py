"""What may follow the words of a command line."""

from __future__ import annotations

import socket
import threading

import pytest

from gateway.completion import names
from gateway.completion.bash import read_line, written_for_bash
from gateway.completion.cache import read_commands
from gateway.completion.tree import describe_commands
from gateway.completion.words import following
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving

ROOT = describe_commands()


def words_after(*words, last=""):
    return [word for word, _help in following(ROOT, words, last).items]


def source_after(*words, last=""):
    return following(ROOT, words, last).source


def test_commands_follow_the_program_and_its_groups():
    assert {"chat", "status", "sessions", "eval"} <= set(words_after())
    assert set(words_after("sessions")) == {"list", "show", "delete"}
    assert dict(following(ROOT, (), "").items)["down"] == "Stop every service."


def test_options_follow_a_dash_and_one_that_was_given_is_left_out():
    options = words_after("chat", last="--")
    assert {"--model", "--json", "--help", "-h"} <= set(options)
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
        ("logs", "inference"),
        ("pull", "smollm2:135m"),
    ],
)
def test_words_that_a_parameter_takes_are_offered(line, word):
    assert word in words_after(*line.split())


def test_a_value_after_an_equals_sign_keeps_its_option():
    found = following(ROOT, ("vote",), "--strategy=un")
    assert found.prefix == "--strategy="
    assert ("unanimity", "") in found.items


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
        ("rm", "pulled"),
        ("eval suite.yaml --model", "models"),
    ],
)
def test_names_of_the_system_are_offered(line, source):
    assert source_after(*line.split()) == source


@pytest.mark.parametrize(
    "line", ["run", "chat --image", "structured --schema", "ingest kb", "eval run", "ask kb", "chat"]
)
def test_where_a_file_or_a_text_is_meant_nothing_is_offered(line):
    found = following(ROOT, line.split(), "")
    assert (found.items, found.source) == ([], "")


def test_an_id_that_names_something_new_is_not_offered():
    assert source_after("chat", "--request-id") == ""
    assert source_after("replay", "r1", "--id") == ""


def test_the_command_that_may_be_left_out_has_its_options_offered():
    assert "--limit" in words_after("eval", last="--")
    assert "--limit" in words_after("eval", "suite.yaml", last="--")


def test_words_that_lead_nowhere_offer_nothing():
    assert following(ROOT, ("nonsense", "--model"), "x").items == []
    assert following(ROOT, ("chat",), "--nonsense=").items == []
    assert words_after("status", "superfluous", "words") == []


def line_of(*parts):
    return read_line({"COMP_WORDS": "\n".join(("pagantic", *parts)), "COMP_CWORD": str(len(parts))})


def test_words_that_bash_has_split_are_put_together():
    assert line_of("chat", "--model", "=", "qw") == (["chat"], "--model=qw")
    assert line_of("pull", "qwen2.5-coder", ":", "0") == (["pull"], "qwen2.5-coder:0")
    assert line_of("pull", "qwen2.5-coder", ":") == (["pull"], "qwen2.5-coder:")
    assert line_of("chat", "") == (["chat"], "")
    assert line_of() == ([], "")


@pytest.mark.parametrize("environment", [{}, {"COMP_WORDS": "pagantic", "COMP_CWORD": "7"}, {"COMP_CWORD": "x"}])
def test_a_line_that_makes_no_sense_is_an_empty_one(environment):
    assert read_line(environment)[1] == ""


def test_names_come_from_one_page_of_the_conversations(monkeypatch):
    for limit in ("CONNECT_S", "ANSWER_S"):
        monkeypatch.setattr(names, limit, 30)
    with serving(ScriptedOrchestrator()) as address:
        monkeypatch.setenv("PAGANTIC_ADDRESS", address)
        assert names.find_names("sessions") == ["a"]


def test_a_name_whose_look_up_hangs_is_not_waited_for(monkeypatch):
    ended, hanging = threading.Event(), threading.Event()

    def look_up(*_, **_kept):
        hanging.wait(30)
        ended.set()
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setenv("PAGANTIC_ADDRESS", "slow.example:1")
    try:
        assert names.find_names("models") == []
        assert not ended.is_set()
    finally:
        hanging.set()
        ended.wait(30)


def test_a_description_that_cannot_be_kept_leaves_no_file(tmp_path):
    (tmp_path / "pagantic" / "commands.json").mkdir(parents=True)
    assert "chat" in read_commands({"XDG_CACHE_HOME": str(tmp_path)})["commands"]
    assert [file.name for file in (tmp_path / "pagantic").iterdir()] == ["commands.json"]


def test_bash_gets_what_follows_its_last_break():
    items = [("qwen2.5-coder:0.5b", ""), ("qwen2.5-coder:1.5b", "")]
    assert written_for_bash(items, "qwen2.5-coder:") == "0.5b\n1.5b"
    assert written_for_bash(items, "qw") == "qwen2.5-coder:0.5b\nqwen2.5-coder:1.5b"
    assert written_for_bash([("--model=m", "")], "--model=") == "m"
