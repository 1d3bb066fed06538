import pytest

from pagantic_common.domain.errors import ErrorCode
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy, Rule
from services.orchestrator.core.model.request import Hints, Mode
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, ToolCallRecord
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Enforced, Infer, Inferred, RunTools, ToolsRan
from tests.unit.orchestrator.test_client_tools import OPEN, OPENED
from tests.unit.orchestrator.test_machine import CALL, CLOCK, INVALID, RECORD, VALID, drive, finish_of, request, said

PREPARED = Prepared(tools=(CLOCK,))
AGAIN = ToolCall("c2", "clock", " { } ")
ZONED = ToolCall("c3", "clock", '{"zone": "Europe/Berlin"}')


def command_of(outcomes, kind):
    return outcomes[-1].command if isinstance(outcomes[-1].command, kind) else None


def test_the_same_call_again_is_answered_from_what_it_gave_and_the_next_round_has_no_tools():
    outcomes = drive(request(), PREPARED, said(calls=[CALL]), ToolsRan((RECORD,)), said(calls=[AGAIN]))
    infer = command_of(outcomes, Infer)
    assert infer.tools == ()
    assert infer.messages[-2].role is Role.TOOL
    assert (infer.messages[-2].content, infer.messages[-2].tool_call_id) == ("noon", "c2")
    assert "without calling a tool" in infer.messages[-1].content
    assert infer.messages[-1] not in outcomes[-1].run.turn
    ended = drive(
        request(), PREPARED, said(calls=[CALL]), ToolsRan((RECORD,)), said(calls=[AGAIN]), said("It is noon.")
    )
    response = finish_of(ended).response
    assert response.content == "It is noon."
    assert response.tool_calls_made == (RECORD,)


def test_a_round_with_a_new_call_beside_a_repeated_one_runs_both():
    outcomes = drive(request(), PREPARED, said(calls=[CALL]), ToolsRan((RECORD,)), said(calls=[ZONED, AGAIN]))
    assert command_of(outcomes, RunTools).calls == (ZONED, AGAIN)


def test_a_call_that_comes_again_after_another_one_runs_again():
    zoned = ToolCallRecord("c3", "clock", ZONED.arguments_json, "one", False, None, 0.1)
    inputs = (said(calls=[CALL]), ToolsRan((RECORD,)), said(calls=[ZONED]), ToolsRan((zoned,)), said(calls=[AGAIN]))
    outcomes = drive(request(), PREPARED, *inputs)
    assert command_of(outcomes, RunTools).calls == (AGAIN,), "what was written meanwhile has to be read"


def test_a_structured_answer_is_not_asked_for_in_words():
    work = request(Mode.STRUCTURED, tools=("clock",), output=OutputContract(schema_json='{"type":"string"}'))
    outcomes = drive(work, PREPARED, said(calls=[CALL]), ToolsRan((RECORD,)), said(calls=[AGAIN]))
    assert command_of(outcomes, Infer).messages[-1].role is Role.TOOL


def test_an_empty_answer_is_no_success_where_rules_judge_it():
    work = request(rules=(Rule("any", expression="true"),))
    failure = finish_of(drive(work, Prepared(), said(""))).response.failure
    assert failure.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE


def test_a_call_that_may_end_otherwise_is_made_again():
    failed = ToolCallRecord("c1", "clock", "{}", "busy", True, ErrorCode.TOOL_UNAVAILABLE, 0.1, is_retryable=True)
    outcomes = drive(request(), PREPARED, said(calls=[CALL]), ToolsRan((failed,)), said(calls=[AGAIN]))
    assert command_of(outcomes, RunTools).calls == (AGAIN,)


def test_two_equal_calls_of_one_turn_both_run():
    twin = ToolCall("c9", "clock", "{}")
    assert command_of(drive(request(), PREPARED, said(calls=[CALL, twin])), RunTools).calls == (CALL, twin)


def test_a_structured_answer_follows_when_the_tool_phase_only_repeats_itself():
    work = request(Mode.STRUCTURED, tools=("clock",), output=OutputContract(schema_json='{"type":"string"}'))
    prepared = Prepared(tools=(CLOCK,), engine_text="grammar")
    outcomes = drive(work, prepared, said(calls=[CALL]), ToolsRan((RECORD,)), said(calls=[AGAIN]))
    assert command_of(outcomes, Infer).engine_text == "grammar"


def test_an_empty_answer_after_tools_is_asked_for_once_more_without_them():
    outcomes = drive(request(), PREPARED, said(calls=[CALL]), ToolsRan((RECORD,)), said(" \n"))
    assert command_of(outcomes, Infer).tools == ()
    ended = drive(request(), PREPARED, said(calls=[CALL]), ToolsRan((RECORD,)), said(""), said(""))
    response = finish_of(ended).response
    assert (response.failure, response.content, response.tool_calls_made) == (None, "", (RECORD,))


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_answer_is_an_answer_with_a_warning_and_is_stored(text):
    finish = finish_of(drive(request(session_id="s"), Prepared(), said(text)))
    response = finish.response
    assert (response.failure, response.content, response.finish_reason) == (None, text, FinishReason.STOP)
    assert [warning.code for warning in response.warnings] == ["empty_answer"]
    assert finish.turn[1:] == (Message(Role.ASSISTANT, text),)


def test_an_empty_constrained_answer_and_a_missing_required_call_are_no_success():
    contract = OutputContract(schema_json='{"type":"string"}')
    once = request(output=contract, retry=RetryPolicy(max_retries=0))
    failed = finish_of(drive(once, Prepared(), said(""), Enforced(INVALID)))
    assert failed.response.failure == INVALID.failure
    required = request(hints=Hints(tool_choice=ToolChoice(ToolChoiceMode.REQUIRED)))
    missing = finish_of(drive(required, PREPARED, said(""))).response.failure
    assert missing.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE


def test_an_answer_that_a_stop_text_ended_at_once_is_empty_without_a_warning():
    stopped = Inferred(InferenceOutput("", FinishReason.STOP, matched_stop="a"))
    response = finish_of(drive(request(hints=Hints(stop=("a",))), Prepared(), stopped)).response
    assert (response.failure, response.warnings) == (None, ())
    called = drive(request(hints=Hints(stop=("a",))), PREPARED, said(calls=[CALL]), ToolsRan((RECORD,)), stopped)
    assert finish_of(called).response.failure is None, "the caller asked for the end, so nothing is asked again"
    assert finish_of(drive(request(hints=Hints(stop=("a",))), Prepared(), said(""))).response.failure is None


def test_the_texts_beside_calls_come_before_the_answer_as_they_streamed():
    inputs = (said("Let me look.", [CALL]), ToolsRan((RECORD,)), said("And ", [ZONED]), ToolsRan((RECORD,)))
    response = finish_of(drive(request(), PREPARED, *inputs, said("it is noon."))).response
    assert (response.earlier_content, response.content) == ("Let me look.And ", "it is noon.")


def test_the_text_beside_the_callers_calls_is_the_answer_and_earlier_ones_come_before():
    work = request(client_tools=(OPEN,))
    inputs = (said("Let me look.", [CALL]), ToolsRan((RECORD,)), said("Opening.", [OPENED]))
    response = finish_of(drive(work, Prepared(tools=(CLOCK, OPEN)), *inputs)).response
    assert (response.earlier_content, response.content, response.tool_calls) == ("Let me look.", "Opening.", (OPENED,))


def test_the_texts_before_a_constrained_answer_did_not_stream():
    work = request(Mode.STRUCTURED, tools=("clock",), output=OutputContract(schema_json='{"type":"string"}'))
    prepared = Prepared(tools=(CLOCK,), engine_text="grammar")
    outcomes = drive(work, prepared, said("Let me look.", [CALL]), ToolsRan((RECORD,)), said("noon"), said('"noon"'))
    assert finish_of([*outcomes, machine.step(outcomes[-1].run, Enforced(VALID))]).response.earlier_content == ""
