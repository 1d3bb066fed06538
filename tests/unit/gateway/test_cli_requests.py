"""What requests print, on which stream, with which exit code."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from gateway.cli.failures import OPTION_OF, exit_code_of, next_step_of
from gateway.cli.main import app
from gateway.cli.tree import COMMANDS, load_command
from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, failure_of
from pagantic_common.rpc.status import MessageTooLarge, error_of
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


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object"}', encoding="utf-8")
    return str(path)


def failed(code, message="broke", **fields):
    return execution_pb2.SystemResponse(
        request_id="r1", error=error_pb2.SystemError(code=code, message=message), **fields
    )


def test_version_is_printed(invoke):
    assert invoke("--version").stdout.startswith("pagantic 0.")


def test_chat_offers_no_tools_unless_they_are_named(invoke, orchestrator):
    invoke("chat", "hi")
    invoke("chat", "hi", "--tool-choice", "clock")
    none, one = orchestrator.requests
    assert none.hints.tool_choice.mode == 3
    assert list(one.tools) == ["clock"]
    result = invoke("chat", "hi", "--tool-choice", "required")
    assert (result.exit_code, "name one with --tool" in result.stderr) == (2, True)


def test_an_empty_text_is_wrong_usage_and_starts_no_conversation(invoke, orchestrator):
    result = invoke("chat", "", input="said\n")
    assert (result.exit_code, result.stderr, orchestrator.requests) == (2, "USAGE: the text is empty\n", [])


def test_options_reach_the_request(invoke, orchestrator, schema):
    common = ["--model", "m", "--request-id", "mine", "--context", "kb", "--stop", "a", "--stop", "b"]
    invoke("chat", "hi", *common, "--reasoning", "off")
    invoke("structured", "hi", "--schema", schema, *common)
    for request in orchestrator.requests:
        assert (request.hints.model, request.request_id, request.context.collection) == ("m", "mine", "kb")
        assert list(request.hints.stop) == ["a", "b"]
    assert orchestrator.requests[0].hints.reasoning.mode == generation_pb2.REASONING_MODE_OFF


@pytest.mark.parametrize("wrong", [["--reasoning", "maybe"], ["--request-id", "a b"], ["--tool-choice", "auto"]])
def test_a_wrong_option_is_told_before_anything_is_sent(invoke, orchestrator, wrong):
    assert invoke("chat", "hi", *wrong).exit_code == 2
    assert invoke("chat", *wrong, input="hi\n").exit_code == 2
    assert orchestrator.requests == []


def test_every_request_has_an_id_before_it_is_sent(invoke, orchestrator, tmp_path):
    (tmp_path / "r.json").write_text('{"mode": "MODE_CHAT", "messages": [{"content": "hi"}]}', encoding="utf-8")
    invoke("chat", "hi")
    invoke("run", str(tmp_path / "r.json"))
    assert all(request.request_id for request in orchestrator.requests)
    assert len({request.request_id for request in orchestrator.requests}) == 2


def test_a_failure_names_the_request():
    result = CliRunner().invoke(app, ["chat", "hi", "--request-id", "mine", "--address", "127.0.0.1:1"])
    assert "request: mine" in result.stderr
    assert result.exit_code == 7


def test_a_tool_call_is_shown_with_arguments_result_and_the_reason_of_a_failure(invoke, orchestrator):
    call = execution_pb2.ToolCallRecord(name="calculator", arguments_json='{"a":1}', result="391")
    broken = execution_pb2.ToolCallRecord(
        name="clock", result="no such zone", is_error=True, error_code=error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED
    )
    orchestrator.response.tool_calls_made.extend([call, broken])
    shown = invoke("chat", "hi").stderr
    assert 'tool calculator({"a":1}) -> 391' in shown
    assert "tool clock() -> failed, TOOL_EXECUTION_FAILED: no such zone" in shown


def test_a_long_result_of_a_tool_is_cut(invoke, orchestrator):
    orchestrator.response.tool_calls_made.add(name="t", result="word " * 1000)
    assert len(invoke("chat", "hi").stderr) < 400


def test_a_structured_answer_that_failed_leaves_stdout_empty(invoke, orchestrator, schema):
    orchestrator.response = failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED, structured_output_json='{"a": "cut')
    result = invoke("structured", "hi", "--schema", schema)
    assert (result.exit_code, result.stdout) == (6, "")
    assert '{"a": "cut' in result.stderr
    assert "next: allow more output with --max-tokens" in result.stderr


def test_a_structured_answer_says_how_it_came_about(invoke, orchestrator, schema):
    orchestrator.response.structured_output_json = "{}"
    orchestrator.response.validation.guarantee = contract_pb2.GUARANTEE_ENFORCED
    orchestrator.response.finish_reason = generation_pb2.FINISH_REASON_STOP
    result = invoke("structured", "hi", "--schema", schema)
    assert result.stdout == "{}\n"
    assert "request r1; guarantee ENFORCED; finish reason stop; 0 prompt tokens" in result.stderr


def test_an_answer_that_was_cut_and_warnings_are_told(invoke, orchestrator):
    orchestrator.response.finish_reason = generation_pb2.FINISH_REASON_LENGTH
    orchestrator.response.warnings.add(code="history_shortened", message="2 turns were left out")
    shown = invoke("chat", "hi").stderr
    assert "warning: the answer was cut" in shown
    assert "warning: 2 turns were left out" in shown


def test_nothing_of_a_model_or_tool_steers_the_terminal(invoke, orchestrator, schema):
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m[bold]kept\r\x08"
    orchestrator.response.content = hostile
    orchestrator.response.structured_output_json = json.dumps({"a": "\x85\x1b[2J"}, ensure_ascii=False)
    orchestrator.response.tool_calls_made.add(name=hostile, arguments_json=hostile, result=hostile)
    orchestrator.response.warnings.add(message=hostile)
    orchestrator.response.candidates.add(content=hostile)
    orchestrator.execution.session_id = hostile
    delta = event_pb2.ExecutionEvent(content_delta=event_pb2.ContentDelta(text=hostile))
    orchestrator.events = [delta]
    for arguments in (
        ["chat", "hi"],
        ["structured", "hi", "--schema", schema],
        ["vote", "hi", "--schema", schema],
        ["plan", "hi"],
        ["show", "r1"],
        ["show", "r1", "--json"],
        ["executions"],
        ["sessions", "show", "a"],
    ):
        output = invoke(*arguments).output
        assert not set(output) & {"\x1b", "\x07", "\x9b", "\x85", "\x08", "\r"}, (arguments, output)
    assert "[bold]kept" in invoke("chat", "hi").stdout


def test_vote_takes_a_vote_and_shows_the_tally(invoke, orchestrator, schema):
    orchestrator.response.structured_output_json = '"high"'
    orchestrator.response.confidence = 0.5
    for value in ('"high"', '"high"', '"low"'):
        orchestrator.response.candidates.add(structured_output_json=value)
    result = invoke("vote", "hi", "--schema", schema, "-n", "4", "--strategy", "unanimity", "--early-stop")
    assert result.stdout == '"high"\n'
    assert 'votes: "high" 2, "low" 1; confidence 0.50' in result.stderr
    voting = orchestrator.requests[0].voting
    assert (voting.n, voting.strategy, voting.early_stop) == (4, execution_pb2.VOTING_STRATEGY_UNANIMITY, True)
    assert invoke("vote", "hi", "--schema", schema, "--strategy", "best").exit_code == 2


def test_plan_runs_given_steps_or_shows_what_the_planner_makes(invoke, orchestrator, tmp_path):
    (tmp_path / "plan.json").write_text('{"steps": [{"name": "a", "kind": "infer"}]}', encoding="utf-8")
    assert invoke("plan", "hi", "--steps", str(tmp_path / "plan.json")).stdout == "hello\n"
    assert orchestrator.requests[0].plan.steps[0].name == "a"
    (tmp_path / "request.json").write_text('{"plan": {"steps": [{"name": "b", "kind": "infer"}]}}', encoding="utf-8")
    invoke("plan", "hi", "--steps", str(tmp_path / "request.json"))
    assert orchestrator.requests[1].plan.steps[0].name == "b"
    assert json.loads(invoke("plan", "hi", "--show").stdout)["steps"][0]["name"] == "one"


def test_every_category_has_an_exit_code_of_its_own_and_every_code_a_next_step():
    codes = {category: set() for category in ErrorCategory}
    for code in ErrorCode:
        error = error_of(failure_of(code, "broke"))
        codes[code.category].add(exit_code_of(error))
        assert next_step_of(error, "r1")
        assert "--help" not in next_step_of(error, "r1")
    assert codes[ErrorCategory.CONFIGURATION_FAILURE] == {3, 7}  # 7 is that of a source that is away
    assert codes[ErrorCategory.INFERENCE_FAILURE] == {4, 6}
    assert codes[ErrorCategory.TOOL_FAILURE] == {5}
    assert codes[ErrorCategory.CONSTRAINT_FAILURE] == codes[ErrorCategory.VALIDATION_FAILURE] == {6}
    assert codes[ErrorCategory.ORCHESTRATION_FAILURE] == {7}
    assert codes[ErrorCategory.CANCELLATION] == {8}


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (errors.NotFound("no"), 3, "list what there is"),
        (errors.PreconditionFailed("no"), 3, "change what the message names first"),
        (errors.InvalidRequest("too large: 5 bytes, at most 4 are taken"), 3, "change what the message names"),
        (errors.InvalidRequest("no", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED), 4, "shorten the text"),
        (MessageTooLarge("5 bytes, at most 4 are taken"), 3, "send less text"),
        (errors.Overloaded("full", retry_after_s=3), 7, "in 3 s"),
        (errors.Overloaded("full", code=ErrorCode.QUOTA_STORAGE, retry_after_s=60), 3, "pagantic sessions delete"),
        (errors.Internal("broke"), 1, "pagantic logs"),
    ],
)
def test_the_next_step_fits_the_failure(error, exit_code, words):
    assert exit_code_of(error) == exit_code
    assert words in next_step_of(error)


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ("hints.stop has 99 texts: it takes 16", "change --stop, which the message calls hints.stop"),
        ("context.max_chunks is 999: at most 64", "change what the message names, and try again"),  # Only `ask` has it.
        ("the text is 'hints.stop'", "change what the message names, and try again"),
    ],
)
def test_the_next_step_names_the_option_for_the_field_that_a_message_begins_with(invoke, orchestrator, message, step):
    orchestrator.response = failed(error_pb2.ERROR_CODE_CONFIG_INVALID, message)
    assert f"next: {step}\n" in invoke("chat", "hi").stderr


def test_tools_says_which_ones_a_model_gets_only_by_name(invoke, orchestrator):
    for name, safety, action in (("clock", "READ", "ALLOW"), ("stock", "EXTERNAL", "ALLOW"), ("send", "WRITE", "ASK")):
        definition = message_pb2.ToolDefinition(name=name, safety=f"TOOL_SAFETY_{safety}")
        orchestrator.tools.append(
            pb.CallableTool(definition=definition, available=True, action=f"TOOL_ACTION_{action}")
        )
    listed = invoke("tools")
    assert [re.split("  +", line.strip())[:3] for line in listed.stdout.strip().splitlines()[-3:]] == [
        ["clock", "read", "allow"],
        ["stock", "external", "allow if named"],
        ["send", "write", "ask"],
    ]
    assert listed.stderr.startswith("named: ")
    del orchestrator.tools[1]
    assert invoke("tools").stderr == ""


def test_the_next_step_for_a_request_as_json_names_no_option(invoke, orchestrator):
    orchestrator.response = failed(error_pb2.ERROR_CODE_CONFIG_INVALID, "hints.stop has 99 texts: it takes 16")
    assert "--stop" not in invoke("run", input='{"mode": "MODE_CHAT", "messages": [{"content": "hi"}]}').stderr


def test_each_field_with_an_option_is_in_the_contract_and_its_option_is_one_of_a_command():
    commands = map(load_command, COMMANDS)
    assert set(OPTION_OF.values()) <= {name for command in commands for one in command.params for name in one.opts}
    for field in OPTION_OF:
        message = execution_pb2.SystemRequest.DESCRIPTOR
        for name in field.split("."):
            assert name in message.fields_by_name, field
            message = message.fields_by_name[name].message_type


def test_a_quote_that_supports_two_sentences_is_printed_once(invoke, orchestrator):
    for _ in range(2):
        orchestrator.response.citations.add(document="a.txt", quote="rain", start=3, end=7)
    shown = invoke("ask", "kb", "why?", "--retriever", "bm25")
    assert (shown.exit_code, shown.stdout.count("rain")) == (0, 1)
