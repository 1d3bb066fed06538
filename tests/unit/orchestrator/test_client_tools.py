"""Tools that the caller runs: their calls end an execution, and a conversation waits for their results."""

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Hints, Mode, Request
from services.orchestrator.core.model.request_check import check_request, check_results
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, ToolCallRecord, WrongCall
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Infer, Inferred, RunTools, ToolsRan, may_correct_calls
from services.orchestrator.core.turn.ending import Finish
from services.orchestrator.core.turn.run import State

OPEN = ToolDefinition("open_door", "Opens a door.", '{"type":"object"}')
CLOCK = ToolDefinition("clock", "Tells the time.", '{"type":"object"}')
OPENED = ToolCall("c1", "open_door", '{"door":1}')
ASKED = ToolCall("c2", "clock", "{}")
NOON = ToolCallRecord("c2", "clock", "{}", "noon", is_error=False, error_code=None, duration_s=0.1)
USER = Message(Role.USER, "open the door")


def request(mode=Mode.CHAT, **fields):
    fields = {"messages": (USER,), "session_id": "", "client_tools": (OPEN,), **fields}
    return Request(request_id="r", mode=mode, **fields)


def said(*calls, text="a moment"):
    finish = FinishReason.TOOL if calls else FinishReason.STOP
    return Inferred(InferenceOutput(text, finish, tool_calls=calls))


def run(work, *inputs, tools=(OPEN, CLOCK), **prepared):
    outcome = machine.start(work)
    for happened in (Prepared(tools=tools, **prepared), *inputs):
        outcome = machine.step(outcome.run, happened)
    return outcome


def test_a_call_of_a_client_tool_ends_the_execution_with_the_call():
    outcome = run(request(), said(OPENED))
    assert outcome.run.state is State.COMPLETE
    assert isinstance(outcome.command, Finish)
    response = outcome.command.response
    assert (response.tool_calls, response.finish_reason, response.content) == ((OPENED,), FinishReason.TOOL, "a moment")
    assert response.failure is None
    assert response.tool_calls_made == ()


WRONG = (WrongCall("c1", 'field "door": expected type string'),)


def test_wrong_arguments_are_told_to_the_model_once_before_the_caller_gets_calls():
    first = Inferred(InferenceOutput("a moment", FinishReason.TOOL, tool_calls=(OPENED, ASKED)), wrong_calls=WRONG)
    outcome = run(request(session_id="s"), first)
    assert isinstance(outcome.command, Infer)
    called, told, other = outcome.command.messages[-3:]
    assert called.tool_calls == (OPENED, ASKED)
    assert (told.role, told.tool_call_id, told.name) == (Role.TOOL, "c1", "open_door")
    assert 'field "door": expected type string' in told.content
    assert (other.tool_call_id, other.content[:7]) == ("c2", "Not run"), "no call of this output runs"
    assert not may_correct_calls(outcome.run)
    mended = ToolCall("c3", "open_door", '{"door":"1"}')
    ended = machine.step(outcome.run, said(mended, text="again")).command
    assert ended.response.tool_calls == (mended,)
    assert [(message.role, message.content, message.tool_calls) for message in ended.turn] == [
        (Role.USER, "open the door", ()),
        (Role.ASSISTANT, "a moment", ()),
        (Role.ASSISTANT, "again", (mended,)),
    ], "a conversation keeps the text that was streamed, and no call that nobody ran"


def test_a_demand_for_a_call_holds_while_it_is_corrected_and_the_limit_of_rounds_counts():
    hints = Hints(tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
    first = Inferred(InferenceOutput("", FinishReason.TOOL, tool_calls=(OPENED,)), wrong_calls=WRONG)
    assert run(request(hints=hints), first).command.tool_choice.mode is ToolChoiceMode.REQUIRED
    assert may_correct_calls(run(request()).run)
    assert not may_correct_calls(run(request(hints=Hints(max_tool_rounds=1))).run)


def test_calls_of_other_tools_in_the_same_turn_run_first():
    outcome = run(request(), said(OPENED, ASKED))
    assert outcome.command == RunTools((ASKED,))
    outcome = machine.step(outcome.run, ToolsRan((NOON,)))
    response = outcome.command.response
    assert (response.tool_calls, response.tool_calls_made) == ((OPENED,), (NOON,))
    assert outcome.run.state is State.COMPLETE


def test_rounds_with_other_tools_alone_go_on():
    outcome = run(request(), said(ASKED), ToolsRan((NOON,)))
    assert isinstance(outcome.command, Infer)
    outcome = machine.step(outcome.run, said(OPENED))
    assert outcome.command.response.tool_calls == (OPENED,)
    assert outcome.command.response.tool_calls_made == (NOON,)


def test_a_stored_conversation_keeps_the_calls_and_the_results_that_there_are():
    outcome = run(request(session_id="s"), said(OPENED, ASKED), ToolsRan((NOON,)))
    user, assistant, result = outcome.command.turn
    assert user == USER
    assert (assistant.role, assistant.content, assistant.tool_calls) == (Role.ASSISTANT, "a moment", (OPENED, ASKED))
    assert (result.role, result.content, result.tool_call_id) == (Role.TOOL, "noon", "c2")


def test_a_call_that_was_complete_before_the_cut_is_handed_over_with_a_warning():
    output = InferenceOutput("", FinishReason.LENGTH, tool_calls=(OPENED,))
    response = run(request(), Inferred(output)).command.response
    assert (response.finish_reason, response.tool_calls) == (FinishReason.TOOL, (OPENED,))
    assert [warning.code for warning in response.warnings] == ["output_truncated"]


def test_the_limit_of_rounds_is_no_limit_for_handing_over():
    hints = Hints(max_tool_rounds=1)
    assert run(request(hints=hints), said(OPENED)).run.state is State.COMPLETE
    assert run(request(hints=hints), said(OPENED, ASKED)).command == RunTools((ASKED,))
    failed = run(request(hints=hints), said(ASKED)).command.response
    assert failed.failure.code is ErrorCode.ORCHESTRATION_ITERATION_LIMIT


def test_the_tool_phase_of_structured_hands_over_too():
    work = request(Mode.STRUCTURED, output=OutputContract(schema_json="{}"))
    outcome = run(work, said(OPENED), engine_text="grammar")
    assert outcome.command.response.tool_calls == (OPENED,)
    assert outcome.command.response.structured_output_json == ""
    assert outcome.run.state is State.COMPLETE


def test_what_is_streamed_is_told_by_the_command():
    assert run(request()).command.client_tools == {"open_door"}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"mode": Mode.PLAN}, "mode PLAN calls no tools of the caller"),
        ({"mode": Mode.REDUNDANT}, "mode REDUNDANT calls no tools of the caller"),
        ({"client_tools": (OPEN, OPEN)}, "'open_door' appears twice"),
        ({"tools": ("open_door",)}, "'open_door' appears twice"),
        ({"client_tools": (ToolDefinition("with space", "", ""),)}, "does not match"),
        ({"client_tools": (ToolDefinition("a", "", "{"),)}, "of client tool 'a' is not JSON"),
        ({"client_tools": (ToolDefinition("a", "", "[]"),)}, "must be a JSON Schema of type object"),
        ({"client_tools": (ToolDefinition("a", "", '{"type":"array"}'),)}, "must be a JSON Schema of type object"),
        ({"client_tools": tuple(ToolDefinition(f"t{n}", "", "") for n in range(129))}, "129 entries"),
    ],
)
def test_definitions_that_cannot_be_offered_are_refused(fields, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        check_request(request(**fields))


def test_tool_choice_may_demand_a_client_tool_of_structured():
    hints = Hints(tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
    check_request(request(Mode.STRUCTURED, output=OutputContract(schema_json="{}"), hints=hints))


CALLED = Message(Role.ASSISTANT, "", tool_calls=(OPENED, ASKED))
DONE = Message(Role.TOOL, "open", tool_call_id="c1", name="open_door")
TOLD = Message(Role.TOOL, "noon", tool_call_id="c2", name="clock")
SILENT = Message(Role.USER)


@pytest.mark.parametrize(
    ("history", "turn"),
    [
        ((), (USER,)),
        ((USER, CALLED, TOLD), (DONE,)),
        ((USER, CALLED, TOLD), (DONE, USER)),
        ((USER, CALLED), (TOLD, DONE)),
        ((USER, CALLED, TOLD), (Message(Role.SYSTEM, "be brief"), DONE)),
        ((USER, CALLED, TOLD, Message(Role.USER, "never mind")), (USER,)),
        ((USER, CALLED, TOLD, DONE, Message(Role.ASSISTANT, "it is open")), (USER,)),
        ((USER, CALLED, SILENT, TOLD), (DONE, USER)),
        ((USER, CALLED, TOLD), (SILENT, DONE, USER)),
        ((USER, Message(Role.ASSISTANT, removed=True)), (USER,)),
    ],
)
def test_results_that_are_owed_may_come_in_any_order_before_all_else(history, turn):
    check_results(history, turn)


@pytest.mark.parametrize("turn", [(USER,), (USER, DONE), (TOLD,)])
def test_a_turn_without_the_owed_results_is_refused_naming_the_calls(turn):
    with pytest.raises(InvalidRequest, match=r"results of calls 'c1' \(open_door\)"):
        check_results((USER, CALLED, TOLD), turn)
    with pytest.raises(InvalidRequest, match=r"results of calls 'c1' \(open_door\)"):
        check_results((USER, CALLED, TOLD, Message(Role.TOOL, removed=True), SILENT), turn)
