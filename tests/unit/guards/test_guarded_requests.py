"""The machine of a guarded request: it is read before anything else, and what is left of it is what is worked on."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCategory, ErrorCode
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolDefinition
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.adapters.journal.writes import entry_from_json, entry_to_json
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.replay import Admitted, replay
from services.orchestrator.core.guards.rules import GuardOutcome, GuardReport
from services.orchestrator.core.guards.texts import texts_of, with_texts
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.decision import Decisions, Option, Question, QuestionKind
from services.orchestrator.core.model.request import Mode, Request, SystemPrompt, TemplateCall
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Infer, Inferred
from services.orchestrator.core.turn.ending import Failed, Finish
from services.orchestrator.core.turn.preparing import CheckInput, InputChecked, MakePlan, Prepare
from services.orchestrator.core.turn.run import State

WARNING = ResponseWarning("guard_redacted", "guard 'secrets' redacted the input: 1 finding")


def request(mode=Mode.CHAT, **fields):
    fields.setdefault("messages", (Message(Role.USER, "my key is K"),))
    return Request(request_id="r", mode=mode, is_guarded=True, **fields)


@pytest.mark.parametrize("mode", Mode)
def test_guards_read_a_request_before_any_other_command(mode):
    outcome = machine.start(request(mode))
    assert outcome.command == CheckInput()
    assert outcome.run.state is State.INIT


def test_a_request_without_guards_begins_as_ever():
    assert machine.start(Request("r", Mode.CHAT, (Message(Role.USER, "hi"),))).command == Prepare()


def test_what_is_left_of_a_request_is_asked_and_remembered():
    checked = InputChecked(("my key is [redacted: K]",), (WARNING,))
    run = machine.start(request(session_id="s")).run
    run = machine.step(run, checked).run
    outcome = machine.step(run, Prepared())
    assert isinstance(outcome.command, Infer)
    assert [message.content for message in outcome.command.messages] == ["my key is [redacted: K]"]
    finish = machine.step(outcome.run, Inferred(InferenceOutput("fine", FinishReason.STOP))).command
    assert isinstance(finish, Finish)
    assert [message.content for message in finish.turn] == ["my key is [redacted: K]", "fine"]
    assert finish.response.warnings == (WARNING,)


def test_a_plan_is_made_of_what_is_left():
    outcome = machine.step(machine.start(request(Mode.PLAN)).run, InputChecked(("left",), (WARNING,)))
    assert isinstance(outcome.command, MakePlan)
    assert outcome.run.request.messages[0].content == "left"


def test_a_block_ends_the_run_and_leaves_no_turn():
    report = GuardReport("secrets", GuardStage.INPUT, GuardOutcome.BLOCKED, 1, ("KEY",))
    outcome = machine.step(machine.start(request(session_id="s")).run, Failed(report.failure))
    finish = outcome.command
    assert isinstance(finish, Finish)
    assert finish.turn == ()
    failure = finish.response.failure
    assert (failure.code, failure.category, failure.retryable) == (
        ErrorCode.GUARD_BLOCKED,
        ErrorCategory.ACCESS_FAILURE,
        False,
    )
    assert failure.details == {"guard": "secrets", "stage": "input", "outcome": "blocked"}


def test_a_request_that_a_guard_could_not_check_may_run_again():
    report = GuardReport("secrets", GuardStage.INPUT, GuardOutcome.FAILED_CLOSED)
    finish = machine.step(machine.start(request()).run, Failed(report.failure)).command
    assert isinstance(finish, Finish)
    assert finish.response.may_run_again


def test_a_replayed_execution_is_not_read_again_and_does_not_differ():
    entries = [Admitted(request()), InputChecked(("left",), (WARNING,)), Prepared()]
    stored = [entry_from_json(entry_to_json(entry)) for entry in entries]
    found = replay(stored)
    assert isinstance(found.outcome.command, Infer)
    assert found.outcome.run.request.messages[0].content == "left"
    assert found.outcome.run.warnings == (WARNING,)


def test_an_entry_of_a_version_without_guards_reads_as_not_guarded():
    old = entry_to_json(Admitted(Request("r", Mode.CHAT, (Message(Role.USER, "hi"),))))
    entry = entry_from_json(old.replace(b',"is_guarded":false', b""))
    assert b"is_guarded" not in old.replace(b',"is_guarded":false', b"")
    assert replay([entry]).outcome.command == Prepare()


TEXT = st.text(min_size=1, max_size=20)
MESSAGES = st.one_of(
    st.builds(Message, st.sampled_from([Role.SYSTEM, Role.USER]), TEXT),
    st.builds(
        Message,
        st.just(Role.ASSISTANT),
        st.text(max_size=9),
        reasoning=st.text(max_size=9),
        tool_calls=st.tuples(st.builds(ToolCall, st.just("c"), st.just("t"), TEXT)),
    ),
    st.builds(Message, st.just(Role.TOOL), TEXT, tool_call_id=st.just("c"), name=st.just("t")),
)
PROMPTS = st.one_of(
    st.builds(SystemPrompt, TEXT, st.tuples(st.tuples(TEXT, st.tuples(TEXT, TEXT)))),
    st.builds(SystemPrompt, template=st.builds(TemplateCall, TEXT, st.tuples(st.tuples(TEXT, TEXT)))),
)


@given(st.lists(MESSAGES, max_size=4).map(tuple), PROMPTS, st.text(max_size=9))
def test_each_text_of_a_request_is_read_and_put_back_in_its_place(messages, prompt, text_prompt):
    asked = request(messages=messages, prompt=prompt, text_prompt=text_prompt)
    texts = texts_of(asked)
    assert with_texts(asked, (one.text for one in texts)) == asked
    changed = with_texts(asked, (f"<{number}>" for number in range(len(texts))))
    assert [one.text for one in texts_of(changed)] == [f"<{number}>" for number in range(len(texts))]


def test_results_of_the_callers_tools_are_results_and_only_strangers_are_not_trusted():
    asked = request(
        messages=(Message(Role.SYSTEM, "s"), Message(Role.USER, "u"), Message(Role.TOOL, "t", tool_call_id="c")),
    )
    assert [(one.stage, one.is_untrusted) for one in texts_of(asked)] == [
        (GuardStage.INPUT, False),
        (GuardStage.INPUT, True),
        (GuardStage.TOOL_RESULTS, True),
    ]


SCHEMA = '{"type":"object","properties":{"when":{"enum":["noon",12],"description":"of it"}}}'
TOOL = ToolDefinition("t", "Plans.", SCHEMA)
QUESTION = Question(QuestionKind.CHOICE, "Which?", (Option("a", "meaning"), Option(True)))


def with_all_texts():
    return request(
        client_tools=(TOOL,),
        output=OutputContract(schema_json=SCHEMA),
        semantic_intent="It is short.",
        decisions=Decisions((QUESTION,)),
    )


def test_descriptions_schemas_and_questions_are_texts_of_a_request():
    texts = [one.text for one in texts_of(with_all_texts())]
    schema = ["type", "object", "properties", "when", "enum", "noon", "12", "description", "of it"]
    assert texts == ["my key is K", "Plans.", *schema, *schema, "It is short.", "Which?", "a", "meaning"]
    assert not any(one.is_untrusted for one in texts_of(with_all_texts())[1:])


def test_changed_words_of_a_schema_leave_it_json():
    changed = with_texts(with_all_texts(), iter(["left", "Plans.", *["type", "object", "properties", "[redacted: K]"]]))
    assert json.loads(changed.client_tools[0].parameters_json) == {
        "type": "object",
        "properties": {"[redacted: K]": {"enum": ["noon", 12], "description": "of it"}},
    }


def test_an_entry_of_a_version_that_read_fewer_texts_leaves_the_others_as_they_are():
    whole = with_all_texts()
    assert with_texts(whole, iter(["left"])) == replace(whole, messages=(Message(Role.USER, "left"),))
