"""Commands for what is stored: executions, conversations, documents, logs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.serving import local
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client.sources.files import find_files
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving


@pytest.fixture
def orchestrator():
    return ScriptedOrchestrator()


@pytest.fixture
def invoke(orchestrator):
    with serving(orchestrator) as address:
        yield lambda *arguments, **kept: CliRunner().invoke(
            app, list(arguments), env={"PAGANTIC_ADDRESS": address}, **kept
        )


def test_executions_are_listed_by_session_state_and_mode(invoke, orchestrator):
    shown = invoke("executions", "--session", "s", "--state", "complete", "--mode", "chat", "--limit", "5").stdout
    for word in ("r1", "CHAT", "COMPLETE", "(none)"):
        assert word in shown
    (request,) = orchestrator.requests
    assert (request.session_id, request.state, request.mode, request.page_size) == ("s", 6, 1, 5)
    for option, names in (("--state", "use one of INIT"), ("--mode", "use one of CHAT")):
        wrong = invoke("executions", option, "gone")
        assert (wrong.exit_code, names in wrong.stderr) == (2, True)


def test_show_prints_the_stored_answer_and_as_json_the_whole_execution(invoke):
    shown = invoke("show", "r1")
    assert (shown.exit_code, shown.stdout) == (0, "hello\n")
    assert "CHAT request r1: COMPLETE" in shown.stderr
    assert json.loads(invoke("show", "r1", "--json").stdout)["response"]["content"] == "hello"
    assert invoke("show", "r2").exit_code == 3


def test_the_model_of_a_route_that_answered_is_shown(invoke, orchestrator):
    assert ", by " not in invoke("show", "r1").stderr
    end = event_pb2.InferenceEnd(tokens_in=9, tokens_out=5, model="hosted")
    orchestrator.events = [event_pb2.ExecutionEvent(sequence=n, inference_end=end) for n in (2, 3)]
    assert "CHAT request r1: COMPLETE, by hosted\n" in invoke("show", "r1").stderr
    assert ", by hosted" in invoke("timeline", "r1").stdout


def test_calls_that_wait_are_listed_and_decided(invoke, orchestrator):
    shown = invoke("approvals", "list").stdout
    for word in ("r1", "c1", "send", "a@b.example", "the policy asks"):
        assert word in shown
    assert json.loads(invoke("approvals", "list", "--json").stdout)["approvals"][0]["tool_call_id"] == "c1"
    assert invoke("approvals", "approve", "r1", "c1", "--arguments", '{"to": "me"}').stdout == "c1 approved\n"
    assert invoke("approvals", "reject", "r1", "c1", "--reason", "no").stdout == "c1 rejected\n"
    approved, rejected = orchestrator.requests
    assert (approved.decision, approved.arguments_json) == (1, '{"to":"me"}')
    assert (rejected.decision, rejected.reason) == (2, "no")
    assert invoke("approvals", "approve", "r1", "c9").exit_code == 3
    for wrong in ("{", "[1]"):
        assert invoke("approvals", "approve", "r1", "c1", "--arguments", wrong).exit_code == 2


def test_a_chat_whose_call_waits_says_how_to_decide(invoke, orchestrator):
    requested = event_pb2.ApprovalRequested(approval=orchestrator.approval)
    orchestrator.events = [event_pb2.ExecutionEvent(sequence=1, approval_requested=requested)]
    result = invoke("chat", "hi")
    assert result.exit_code == 0
    assert "pagantic approvals approve r1 c1" in result.stderr
    assert "'a@b.example' came from read (c0)" in result.stderr


def test_resume_with_wait_prints_the_answer(invoke):
    result = invoke("resume", "r1", "--wait")
    assert (result.exit_code, result.stdout) == (0, "hello\n")


@pytest.mark.parametrize(
    ("interrupted", "words"), [(True, "pagantic resume r1 --wait"), (False, "still running, in EXECUTE")]
)
def test_a_timeline_that_has_not_ended_says_why(invoke, orchestrator, interrupted, words):
    orchestrator.execution.state.current = execution_pb2.LIFECYCLE_STATE_EXECUTE
    orchestrator.execution.interrupted = interrupted
    assert words in invoke("timeline", "r1").stderr


def test_cancel_says_how_the_execution_ended(invoke):
    assert "r1 ended as CANCELLED" in invoke("cancel", "r1").stderr


def test_conversations_are_listed_shown_and_deleted(invoke, orchestrator):
    assert invoke("sessions", "list").exit_code == 0
    assert invoke("sessions", "show", "a").stdout == "user: hi there\n"
    assert invoke("sessions", "show", "b").exit_code == 3
    assert invoke("sessions", "delete", "a").exit_code == 0
    assert orchestrator.requests[-1].session_id == "a"


def test_a_folder_is_read_with_its_folders_and_without_hidden_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.txt").touch()
    (tmp_path / ".d").touch()
    (tmp_path / "in" / "b.bin").touch()
    (tmp_path / "a.md").touch()
    found = find_files([tmp_path, str(tmp_path / "a.md")])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a.md", "in/b.bin", "a.md"]


def test_logs_show_the_last_lines_of_a_service(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "tools.log").write_text("one\ntwo\x1b[2J\nthree\n", encoding="utf-8")
    (tmp_path / "logs" / "rerank.log").write_text("four\n", encoding="utf-8")

    def invoke(*arguments):
        return CliRunner().invoke(app, ["logs", *arguments], env={"PAGANTIC_STATE": str(tmp_path)})

    assert invoke("tools", "--lines", "2").stdout == "two\nthree\n"
    assert "rerank        four" in invoke().stdout
    wrong = invoke("tool")
    assert (wrong.exit_code, "there are: rerank, tools" in wrong.stderr) == (2, True)


def test_logs_that_are_followed_show_whole_lines_and_begin_anew_after_rotation(tmp_path, capsys):
    log = tmp_path / "tools.log"
    log.write_text("old\n", encoding="utf-8")
    end = local._show_tail(log, 0, is_named=False)
    log.write_text("old\nnew\nhal", encoding="utf-8")
    end = local._show_new(log, end, is_named=False)
    assert capsys.readouterr().out == "new\n"
    log.write_text("x\n", encoding="utf-8")
    local._show_new(log, end, is_named=False)
    assert capsys.readouterr().out == "x\n"


def test_states_are_printed_as_json(invoke):
    assert json.loads(invoke("cancel", "r1", "--json").stdout) == {"request_id": "r1", "state": "CANCELLED"}
    assert json.loads(invoke("resume", "r1", "--json").stdout) == {"request_id": "r1", "state": "EXECUTE"}


@pytest.mark.parametrize("limits", [(), ("--tokens", "5k")])
def test_a_budget_is_printed_as_json_with_limits_and_without(invoke, limits):
    shown = invoke("budgets", "set", "acme", *limits, "--json")
    assert json.loads(shown.stdout)["tenant"] == "acme"
    assert ("no longer has a budget" in shown.stderr) is not bool(limits)
