"""The command against an orchestrator that answers as told: answers, mistakes, exit codes."""

from __future__ import annotations

import errno
import json
import re
import sys

import pytest
from typer.testing import CliRunner

from gateway.cli import main
from gateway.cli.main import app
from gateway.cli.serving import doctor, local
from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving

NOBODY = "127.0.0.1:1"


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
def schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object"}', encoding="utf-8")
    return str(path)


def fail_with(orchestrator, code, message):
    orchestrator.response = execution_pb2.SystemResponse(
        request_id="r1", error=error_pb2.SystemError(code=code, message=message)
    )


def test_chat_streams_the_answer_and_sends_what_was_asked_for(invoke, orchestrator):
    result = invoke("chat", "hi", "--tool", "clock", "--tool-choice", "required", "--max-tokens", "9", "--seed", "3")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    (request,) = orchestrator.requests
    assert list(request.tools) == ["clock"]
    assert request.hints.tool_choice.mode == message_pb2.TOOL_CHOICE_MODE_REQUIRED
    assert (request.hints.max_tokens, request.hints.seed) == (9, 3)


def test_chat_as_json_prints_the_response(invoke):
    result = invoke("chat", "hi", "--json")
    assert json.loads(result.stdout) == {"request_id": "r1", "content": "hello"}


@pytest.mark.parametrize("command", [("chat", "hi"), ("ask", "docs", "hi", "--retriever", "bm25")])
def test_what_is_asked_for_as_json_has_the_answer_of_the_same_request(invoke, orchestrator, command):
    for options in ((), ("--json",)):
        assert invoke(*command, "--request-id", "r", *options).exit_code == 0
    shown, as_json = orchestrator.requests
    assert shown == as_json


def test_a_conversation_keeps_one_session_until_its_input_ends(invoke, orchestrator):
    assert invoke("chat", "--lines", input="one\n\ntwo\n").exit_code == 0
    assert [request.messages[0].content for request in orchestrator.requests] == ["one", "two"]
    sessions = {request.session_id for request in orchestrator.requests}
    assert len(sessions) == 1
    assert sessions != {""}


def test_a_failed_turn_does_not_end_the_conversation(invoke, orchestrator):
    fail_with(orchestrator, error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR, "broke")
    result = invoke("chat", "--lines", input="one\ntwo\n")
    assert (result.exit_code, len(orchestrator.requests)) == (0, 2)
    assert "INFERENCE_ENGINE_ERROR: broke" in result.stderr


def test_a_response_with_an_error_is_one_line_and_a_next_step(invoke, orchestrator):
    fail_with(orchestrator, error_pb2.ERROR_CODE_ORCHESTRATION_ITERATION_LIMIT, "20 rounds\nof tools")
    result = invoke("chat", "hi")
    assert result.exit_code == 7
    assert result.stderr == (
        "ORCHESTRATION_ITERATION_LIMIT: 20 rounds of tools\nrequest: r1\n"
        "next: see what happened with `pagantic timeline r1`\n"
    )


@pytest.mark.parametrize(
    ("arguments", "service"),
    [
        (["chat", "hi", "--address", NOBODY], "orchestrator"),
        (["timeline", "r1", "--address", NOBODY], "orchestrator"),
        (["tools", "--address", NOBODY], "orchestrator"),
        (["ingest", "kb", __file__, "--address", NOBODY], "context"),
    ],
)
def test_a_service_that_is_down_is_named_with_the_way_to_start_it(arguments, service):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 7
    assert f"UNAVAILABLE: the {service} service cannot be reached" in result.stderr
    assert "`pagantic up`" in result.stderr
    assert "Traceback" not in result.output


def test_run_sends_a_request_file_and_prints_the_response(invoke, orchestrator, tmp_path):
    path = tmp_path / "request.json"
    path.write_text('{"mode": "MODE_CHAT", "messages": [{"role": "ROLE_USER", "content": "hi"}]}', encoding="utf-8")
    assert json.loads(invoke("run", str(path)).stdout)["content"] == "hello"
    assert orchestrator.requests[0].messages[0].content == "hi"
    lines = invoke("run", str(path), "--stream").stdout.splitlines()
    assert [json.loads(line).get("sequence") for line in lines] == ["1", "2"]


@pytest.mark.parametrize("text", ["{", '{"mood": "MODE_CHAT"}', "[]"])
def test_a_request_file_that_is_no_request_is_wrong_usage(invoke, orchestrator, text):
    result = invoke("run", "-", input=text)
    assert result.exit_code == 2
    assert "USAGE: the request is not " in result.stderr
    assert orchestrator.requests == []


@pytest.mark.parametrize("command", [["run"], ["structured", "text", "--schema"], ["ingest", "kb"]])
def test_a_missing_file_is_named(invoke, command):
    result = invoke(*command, "nowhere.json")
    assert result.exit_code == 2
    assert "USAGE: cannot read 'nowhere.json': no such file or directory" in result.stderr


def test_structured_takes_its_text_from_a_file_and_prints_only_the_json(invoke, orchestrator, schema, tmp_path):
    orchestrator.response.structured_output_json = '{"a":1}'
    (tmp_path / "text.txt").write_text("some text", encoding="utf-8")
    result = invoke("structured", "--schema", schema, f"@{tmp_path / 'text.txt'}")
    assert (result.exit_code, result.stdout) == (0, '{"a":1}\n')
    assert orchestrator.requests[0].messages[0].content == "some text"
    assert orchestrator.requests[0].output.schema_json == '{"type": "object"}'


def test_a_schema_that_is_not_json_and_an_empty_text_are_wrong_usage(invoke, schema, tmp_path):
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    bad_schema = invoke("structured", "--schema", str(tmp_path / "bad.json"), "text")
    assert (bad_schema.exit_code, "is not JSON" in bad_schema.stderr) == (2, True)
    assert invoke("structured", "--schema", schema, "-", input=" ").exit_code == 2


def test_a_timeline_is_a_table_and_as_json_a_line_for_each_event(invoke):
    table = invoke("timeline", "r1").stdout
    assert "lifecycle.transition" in table
    assert "\x1b" not in table
    assert json.loads(invoke("timeline", "r1", "--json").stdout)["action"] == "lifecycle.transition"


def test_an_unknown_request_has_no_timeline(invoke):
    result = invoke("timeline", "r2")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (3, "NOT_FOUND: no execution has request_id 'r2'")


def test_an_unknown_option_is_wrong_usage(invoke):
    assert invoke("chat", "hi", "--colour").exit_code == 2


def test_the_supervisors_exit_code_is_passed_on(invoke, monkeypatch):
    monkeypatch.setattr(local, "_run", lambda *arguments: {"up": 0, "status": 1}[arguments[0]])
    assert invoke("up").exit_code == 0
    assert invoke("status", "--json").exit_code == 1


def test_doctor_tells_a_service_that_serves_from_one_that_does_not(invoke, orchestrator, monkeypatch):
    with serving(orchestrator) as address:
        areas = [{"name": "orchestrator", "address": address}, {"name": "tools", "address": NOBODY}]
        monkeypatch.setattr(doctor, "read_status", lambda: areas)
        result = invoke("doctor")
    assert result.exit_code == 1
    assert f"ok   orchestrator: serving on {address}" in result.stdout
    assert f"fail tools: not running; {NOBODY} is free\n     next: run `pagantic up`" in result.stdout


def test_doctor_asks_for_a_newer_python():
    assert doctor.check_python((3, 10, 0)).next_step
    assert not doctor.check_python((3, 11, 0)).next_step


def test_doctor_asks_for_the_engine_only_where_a_model_is_decoded_here(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setenv("PAGANTIC_INFERENCE_REMOTES", "{}")
    assert "pip install 'pagantic[server,engine]'" in doctor.check_engine().next_step
    monkeypatch.setenv("PAGANTIC_INFERENCE_MODEL_PATH", "none")
    assert not doctor.check_engine().next_step


def test_doctor_accepts_a_service_without_a_model_of_its_own(monkeypatch):
    monkeypatch.setenv("PAGANTIC_INFERENCE_MODEL_PATH", "none")
    assert not doctor.check_model().next_step
    monkeypatch.setenv("PAGANTIC_INFERENCE_MODEL_PATH", "/no/such.gguf")
    assert doctor.check_model().next_step
    assert doctor.check_loaded([]).found.startswith("none loaded")
    assert doctor.check_loaded(["a", "b"]).found == "a, b, loaded"


def test_resume_says_where_it_goes_on_and_why_it_does_not(invoke):
    result = invoke("resume", "r1")
    assert result.exit_code == 0
    assert "continues from EXECUTE" in result.stderr
    result = invoke("resume", "r2")
    assert result.exit_code != 0
    assert "is not interrupted" in result.stderr


def test_usage_shows_tokens_and_cost(invoke):
    shown = invoke("usage", "--session", "s").stdout
    assert "default" in shown
    assert "0.5000" in shown
    assert json.loads(invoke("usage", "--json").stdout)["output_tokens"] == "6"


def test_usage_is_summed_by_the_keys_of_an_option(invoke):
    shown = invoke("usage", "--by", "subject", "--by", "tenant").stdout
    assert "USAGE_KEY_SUBJECT,USAGE_KEY_TENANT" in shown
    assert "session" not in shown
    wrong = invoke("usage", "--by", "user")
    assert wrong.exit_code == 2
    assert "--by 'user': use session, model, subject, tenant" in wrong.stderr


def test_help_is_plain_for_every_command():
    runner = CliRunner()
    listed = runner.invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    commands = re.findall(r"^  ([a-z]+)  +\S", listed.split("Commands:")[1], flags=re.MULTILINE)
    assert len(commands) > 20
    for command in [*map(str.split, commands), ["sessions", "show"], ["collections", "delete"]]:
        shown = runner.invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
        assert shown.exit_code == 0
        assert not re.search(r"[{}]|<[a-z]+", shown.stdout), shown.stdout
    assert "..." not in listed.split("Exit codes")[0].replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/Data/Me"), "permission denied: '/Data/Me'"),
        (OSError("cannot use /Data/Me: choose another --port"), "cannot use /Data/Me: choose another --port"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_of_the_system_keeps_its_file_and_its_words(monkeypatch, tmp_path, capsys, error, words):
    def fail(**_words):
        raise error

    monkeypatch.setenv("PAGANTIC_STATE", str(tmp_path))
    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, capsys.readouterr().err) == (1, f"FAILED: {words}\n")
