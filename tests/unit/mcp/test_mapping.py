"""What the protocol calls things, and what the system calls them."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.mapping.deployment_tools import offered_tools, registered_name, tool_call_request
from gateway.mcp.mapping.failures import describe_failure
from gateway.mcp.mapping.own_tools import NAMES, own_tools, read_own_call
from gateway.mcp.mapping.progress import REPORT_EVERY_CHARACTERS, ExecutionProgress, ToolProgress
from gateway.mcp.mapping.results import failed, result_of, tool_result_of
from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.rpc.status import error_of

SCHEMA = {"type": "object"}


def test_own_tools_take_what_their_schemas_say():
    schemas = {tool.name: tool.input_schema for tool in own_tools()}
    assert schemas.keys() == NAMES
    assert {name: schema["required"] for name, schema in schemas.items()} == {
        "ask": ["question"],
        "extract": ["text", "schema"],
        "vote": ["question", "schema"],
        "plan": ["task"],
    }
    assert all(schema["additionalProperties"] is False for schema in schemas.values())


def test_ask_is_a_chat_request():
    arguments = {
        "question": "Why?",
        "session_id": "s",
        "system": "Be brief.",
        "collection": "notes",
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "timeout_s": 2,
        "tools": ["clock"],
    }
    request = read_own_call("ask", arguments, "r1")
    assert (request.mode, request.request_id, request.session_id) == (execution_pb2.MODE_CHAT, "r1", "s")
    assert (request.prompt.text, request.context.collection, list(request.tools)) == ("Be brief.", "notes", ["clock"])
    hints = request.hints
    assert (hints.model, hints.max_tokens, hints.temperature, hints.timeout.seconds) == ("m", 9, 0.5, 2)


def test_ask_without_tools_offers_none_and_by_default_all():
    none = read_own_call("ask", {"question": "x", "tools": []}, "r").hints.tool_choice
    assert none.mode == message_pb2.TOOL_CHOICE_MODE_NONE
    assert not read_own_call("ask", {"question": "x"}, "r").hints.HasField("tool_choice")


def test_extract_and_vote_carry_the_schema_and_plan_its_steps():
    extract = read_own_call("extract", {"text": "x", "schema": SCHEMA}, "r")
    assert (extract.mode, json.loads(extract.output.schema_json)) == (execution_pb2.MODE_STRUCTURED, SCHEMA)
    vote = read_own_call("vote", {"question": "x", "schema": SCHEMA, "n": 5, "strategy": "unanimity"}, "r")
    assert (vote.mode, vote.voting.n) == (execution_pb2.MODE_REDUNDANT, 5)
    assert vote.voting.strategy == execution_pb2.VOTING_STRATEGY_UNANIMITY
    step = {"name": "a", "kind": "tool", "parameters": {"tool": "clock", "name": "x"}, "depends_on": ["b"]}
    plan = read_own_call("plan", {"task": "x", "steps": [step]}, "r")
    (made,) = plan.plan.steps
    assert (made.name, made.kind, list(made.depends_on)) == ("a", "tool", ["b"])
    assert json.loads(made.parameters_json) == {"tool": "clock", "name": "x"}
    assert not read_own_call("plan", {"task": "x"}, "r").HasField("plan")


@pytest.mark.parametrize("name", sorted(NAMES))
@given(arguments=st.dictionaries(st.text(max_size=8), st.none() | st.text() | st.integers() | st.lists(st.none())))
def test_any_arguments_are_a_request_or_are_refused(name, arguments):
    with suppress(InvalidRequest):
        assert read_own_call(name, arguments, "r").request_id == "r"


@pytest.mark.parametrize(
    ("safety", "read_only", "open_world"),
    [
        (message_pb2.TOOL_SAFETY_NONE, True, False),
        (message_pb2.TOOL_SAFETY_READ, True, False),
        (message_pb2.TOOL_SAFETY_WRITE, False, False),
        (message_pb2.TOOL_SAFETY_EXTERNAL, False, True),
        (message_pb2.TOOL_SAFETY_UNSPECIFIED, False, True),
    ],
)
def test_the_safety_of_a_tool_becomes_its_annotations(safety, read_only, open_world):
    (tool,) = offered_tools([message_pb2.ToolDefinition(name="t", safety=safety)], frozenset())
    hints = tool.annotations
    assert (hints.read_only_hint, hints.open_world_hint) == (read_only, open_world)
    assert hints.destructive_hint is not read_only


@pytest.mark.parametrize("schema", ["", "no JSON", "[]", '{"properties":{}}'])
def test_every_offered_tool_has_the_schema_of_an_object(schema):
    (tool,) = offered_tools([message_pb2.ToolDefinition(name="t", parameters_json=schema)], frozenset())
    assert tool.input_schema["type"] == "object"


def test_a_taken_name_gets_a_prefix_that_leads_back():
    offered = offered_tools([message_pb2.ToolDefinition(name=name) for name in ("ask", "clock")], NAMES)
    assert [tool.name for tool in offered] == ["deployment.ask", "clock"]
    assert [registered_name(tool.name) for tool in offered] == ["ask", "clock"]


def test_a_call_of_a_registered_tool_is_a_plan_with_one_step():
    request = tool_call_request("clock", {"zone": "UTC"}, "r1")
    (step,) = request.plan.steps
    assert (request.mode, request.request_id, step.kind) == (execution_pb2.MODE_PLAN, "r1", "tool")
    assert json.loads(step.parameters_json) == {"tool": "clock", "arguments": {"zone": "UTC"}}


def test_an_object_is_structured_content_and_anything_else_is_text():
    for text, structured in (('{"a":1}', {"a": 1}), ("[1]", None), ("{no", None), ("", None)):
        result = result_of(execution_pb2.SystemResponse(request_id="r", structured_output_json=text, content="c"))
        assert result.structured_content == structured
        assert result.content[0].text == (text or "c")


def test_the_result_of_a_tool_is_what_it_gave():
    result = tool_result_of(execution_pb2.SystemResponse(request_id="r", content='{"stock":3}'))
    assert (result.content[0].text, result.structured_content) == ('{"stock":3}', {"stock": 3})


def test_a_failure_has_its_code_message_and_next_step_and_what_was_said_before():
    error = error_pb2.SystemError(code=error_pb2.ERROR_CODE_CANCELLED_TIMEOUT, message="the time is up")
    result = result_of(execution_pb2.SystemResponse(request_id="r1", content="so far", error=error))
    assert result.is_error
    first, second = (block.text for block in result.content)
    assert first.splitlines() == [
        "CANCELLED_TIMEOUT: the time is up",
        "next: allow more time with timeout_s, or less output with max_tokens",
        "request: r1",
    ]
    assert second == "so far"
    assert result.structured_content["code"] == "CANCELLED_TIMEOUT"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_next_step(code):
    failure = describe_failure(error_of(errors.failure_of(code, "words")))
    assert failure.code == code.value
    assert failure.next_step


@pytest.mark.parametrize("cls", [errors.Overloaded, errors.NotFound, errors.Aborted, errors.Internal])
def test_a_failure_outside_the_taxonomy_has_the_name_of_its_status(cls):
    failure = describe_failure(cls("words", retry_after_s=3.0))
    assert failure.code == cls("").failure.code or failure.code.isupper()
    assert failed(cls("words"), "").content[0].text.count("\n") == 1


def delta(text):
    return event_pb2.ExecutionEvent(content_delta=event_pb2.ContentDelta(text=text))


@given(st.lists(st.integers(1, 200), max_size=60))
def test_reports_of_an_answer_grow_and_are_fewer_than_its_pieces(sizes):
    progress = ExecutionProgress()
    reports = [progress.report_of(delta("x" * size)) for size in sizes]
    made = [report.progress for report in reports if report is not None]
    assert made == sorted(set(made))
    assert len(made) <= 1 + sum(sizes) // min(REPORT_EVERY_CHARACTERS, max(sizes, default=1))


def test_steps_tools_and_votes_are_reported_in_words():
    progress = ExecutionProgress()
    step = event_pb2.ExecutionEvent(action="step.start", step_start=event_pb2.StepStart(name="a", kind="infer"))
    assert progress.report_of(step).message == "step.start: a (infer)"
    assert progress.report_of(event_pb2.ExecutionEvent(transition=event_pb2.LifecycleTransition())) is None


@given(st.lists(st.floats(allow_nan=True)))
def test_progress_of_a_tool_is_passed_on_only_where_it_grows(values):
    progress, made = ToolProgress(), []
    for value in values:
        event = event_pb2.ExecutionEvent(tool_progress=message_pb2.ToolProgress(progress=value))
        report = progress.report_of(event)
        if report is not None:
            made.append(report.progress)
    assert made == sorted(set(made))
