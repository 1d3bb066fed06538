"""Comparisons of executions with their replays."""

import json

from gateway.replaying.comparing import Recorded, Verdict, compare
from gateway.replaying.describing import describe_comparison, describe_recorded_step
from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2

COMPLETE, ERROR = execution_pb2.LIFECYCLE_STATE_COMPLETE, execution_pb2.LIFECYCLE_STATE_ERROR


def step(name, content="", *, cached=0, model="small", **fields):
    usage = usage_pb2.TokenUsage(prompt_tokens=10, cached_prompt_tokens=cached, output_tokens=3)
    return execution_pb2.ExecutionStep(name=name, content=content, model=model, usage=usage, **fields)


def recorded(*steps, content="x", state=COMPLETE, taken=(), **response):
    events = [event_pb2.ExecutionEvent(step_recorded=event_pb2.StepRecorded(name=name)) for name in taken]
    events.append(event_pb2.ExecutionEvent(transition=event_pb2.LifecycleTransition(to_state=state)))
    return Recorded(execution_pb2.SystemResponse(content=content, **response), steps, events)


def verdicts(compared):
    return [(one.name, one.verdict) for one in compared.steps]


def test_what_is_the_same_is_the_same_whatever_was_drawn_anew():
    def tools(call_id, seconds):
        made = execution_pb2.ToolCallRecord(id=call_id, name="clock", result="noon")
        made.duration.FromSeconds(seconds)
        return execution_pb2.ExecutionStep(name="tools-1", tool_calls_made=[made])

    before = recorded(step("prepare"), tools("c1", 1), step("infer-1", "x"))
    after = recorded(step("prepare"), tools("c2", 2), step("infer-1", "x", cached=4), taken=["prepare"])
    compared = compare(before, after)
    assert verdicts(compared) == [("prepare", Verdict.TAKEN), ("tools-1", Verdict.SAME), ("infer-1", Verdict.SAME)]
    assert compared.is_same
    assert [one.field for one in compared.steps[-1].figures] == ["cached_prompt_tokens"]
    assert json.loads(json.dumps(compared.as_json()))["same"] is True


def test_a_step_that_gave_something_else_is_named_with_what_explains_it():
    before = recorded(step("infer-1", "one\ntwo"), content="one")
    for changes, reason in (
        ({"model": "other"}, "another model"),
        ({"cached": 8}, "other batch shapes"),
        ({}, "same prompt length, model and seed"),
    ):
        compared = compare(before, recorded(step("infer-1", "one\nthree", **changes), content="other"))
        assert not compared.is_same
        assert reason in compared.first_difference.explanation
        lines = list(describe_comparison(compared))
        assert any(reason in line for line in lines)
        assert "  -two" in lines
        assert "  +three" in lines
        assert "answer           differs" in lines


def test_states_and_steps_of_one_alone_are_differences():
    before = recorded(step("infer-1"), step("infer-2"))
    failed = error_pb2.SystemError(code=error_pb2.ERROR_CODE_TOOL_DENIED)
    after = recorded(step("infer-1"), step("validate-1"), state=ERROR, error=failed, content="")
    compared = compare(before, after)
    assert verdicts(compared)[1:] == [("validate-1", Verdict.ADDED), ("infer-2", Verdict.MISSING)]
    assert not compared.has_same_states
    assert {one.field: one.replayed for one in compared.answer} == {"content": "", "error": "ERROR_CODE_TOOL_DENIED"}
    assert next(describe_comparison(compared)) == "states           differ: COMPLETE → ERROR"


def test_a_recorded_step_is_described_in_a_line():
    made = execution_pb2.ToolCallRecord(id="c1", name="clock", result="noon\nUTC")
    described = describe_recorded_step(execution_pb2.ExecutionStep(name="tools-1", tool_calls_made=[made]))
    assert described == "tools-1          clock (c1) gave noon UTC"
    failed = execution_pb2.ExecutionStep(name="infer-1", error={"code": error_pb2.ERROR_CODE_TOOL_DENIED})
    assert describe_recorded_step(failed) == "infer-1          failed: TOOL_DENIED"
    assert len(describe_recorded_step(step("infer-1", "x" * 1000))) < 400
