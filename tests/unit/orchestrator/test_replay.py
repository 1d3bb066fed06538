"""Random event orders through the machine, and every journal of them taken again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.text.calibration import Calibration, LabelCalibration
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.adapters.journal.writes import UnreadableEntryError, entry_from_json, entry_to_json
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.progress import (
    CallBegan,
    CallEnded,
    CallGivenUp,
    ChildAnswer,
    Progress,
    StepEnded,
    failed_with,
)
from services.orchestrator.core.execution.replay import Admitted, replay
from services.orchestrator.core.kernel.command import IllegalAnswerError
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy
from services.orchestrator.core.model.decision import Decisions, Question, QuestionKind
from services.orchestrator.core.model.plan import Plan, PlanPolicy, Step, StepResult, Value, ValueKind
from services.orchestrator.core.model.request import Hints, Mode
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.model.voting import Strategy, Voting
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Enforce, Enforced, Infer, Inferred, RunTools, ToolsRan
from services.orchestrator.core.turn.deciding import Decide, Decided
from services.orchestrator.core.turn.ending import Failed, Finish
from services.orchestrator.core.turn.plan_steps import PlanRan, RunPlan
from services.orchestrator.core.turn.preparing import MakePlan, Planned, Prepare
from services.orchestrator.core.turn.replicas import Replica
from services.orchestrator.core.turn.run import TERMINAL, State
from services.orchestrator.core.turn.voting import Sample, Sampled
from tests.unit.orchestrator.test_machine import CALL, CLOCK, INVALID, RECORD, USAGE, VALID, request, said

OTHER = ToolDefinition("pay", "Pays.", "{}")
PLAN = Plan((Step("a", "infer"), Step("b", "infer")))
WRONG_PLAN = Plan((Step("a", "infer"), Step("a", "nothing")))
DECISIONS = Decisions((Question(QuestionKind.PREDICATE, "p"), Question(QuestionKind.PREDICATE, "q", name="n")))
CAUTIOUS = replace(DECISIONS, min_confidence=0.7, min_label_mass=0.5)
CALIBRATION = LabelCalibration("m", {"true": Calibration(2.0, 0.5), "false": Calibration(2.0, -0.5)})
LOGPROBS = st.floats(-900, 0)
FAILURES = st.sampled_from([*(failure_of(code, "x") for code in ErrorCode), Failure(code=None, message="a bug")])
RESULTS = st.sampled_from(
    [
        StepResult("a", "infer", output=Value(ValueKind.TEXT, text="x"), usage=USAGE),
        StepResult("b", "infer", failure=failure_of(ErrorCode.TOOL_TIMEOUT, "late")),
    ]
)


@st.composite
def requests(draw):
    mode = draw(st.sampled_from(Mode))
    output = OutputContract(schema_json="{}", strict_validation=draw(st.booleans()))
    return request(
        mode,
        hints=Hints(
            max_tool_rounds=draw(st.integers(1, 4)),
            seed=draw(st.none() | st.integers(0, 2**64 - 1)),
            tool_choice=draw(st.sampled_from([ToolChoice(), ToolChoice(ToolChoiceMode.REQUIRED)])),
        ),
        retry=RetryPolicy(max_retries=draw(st.integers(0, 3))),
        session_id=draw(st.sampled_from(["", "s"])),
        output=output if mode is not Mode.CHAT or draw(st.booleans()) else OutputContract(),
        voting=Voting(
            draw(st.integers(1, 4)), draw(st.sampled_from(Strategy)), early_stop=draw(st.booleans()),
            min_agreement=draw(st.sampled_from([0.0, 0.6])),
        ),
        plan=draw(st.sampled_from([None, PLAN, WRONG_PLAN, Plan()])) if mode is Mode.PLAN else None,
        decisions=draw(st.sampled_from([DECISIONS, CAUTIOUS])) if mode is Mode.DECIDE else None,
    )  # fmt: skip


def sampled(draw, voting):
    """Return the end of all replicas, or of the first ones where the vote may stop early."""
    most = draw(st.integers(1, voting.n)) if voting.early_stop else voting.n
    found = st.sampled_from([VALID, INVALID, None])
    replicas = [(index, draw(found)) for index in range(most)]
    return Sampled(
        tuple(
            Replica(index, enforcement, None if enforcement else failure_of(ErrorCode.INFERENCE_ENGINE_ERROR, "x"))
            for index, enforcement in replicas
        ),
        USAGE,
    )


def answer_to(command, draw):  # noqa: PLR0911 - an arm for each command
    """Return something that may happen to a command."""
    if draw(st.integers(0, 9)) == 0:
        return Failed(draw(FAILURES), draw(st.sampled_from([(), (RECORD,)])))
    match command:
        case Prepare():
            return Prepared(tools=draw(st.sampled_from([(), (CLOCK,)])), engine_text=draw(st.sampled_from(["", "g"])))
        case Infer():
            return said(draw(st.sampled_from(["", "x"])), draw(st.sampled_from([(), (CALL,)])) if command.tools else ())
        case RunTools():
            return ToolsRan((RECORD,))
        case Enforce():
            return Enforced(draw(st.sampled_from([VALID, INVALID])))
        case Sample():
            return sampled(draw, command.voting)
        case Decide():
            logprobs = tuple(tuple(draw(LOGPROBS) for _ in asked.labels) for asked in command.questions)
            return Decided(logprobs, USAGE, "m", draw(st.sampled_from([None, CALIBRATION])))
        case MakePlan():
            return Planned(draw(st.sampled_from([PLAN, WRONG_PLAN, Plan()])), USAGE)
        case RunPlan():
            return PlanRan(tuple(draw(st.lists(RESULTS, max_size=2))), (RECORD,), draw(st.sampled_from([None, VALID])))


@given(st.data())
def test_any_order_of_events_stays_in_the_table_and_ends_and_its_journal_gives_the_same(data):
    work, bounds = data.draw(requests()), PlanPolicy(max_steps=5)
    outcome = machine.start(work, bounds)
    state, transitions, entries = None, [], [Admitted(work, bounds)]
    for _ in range(60):
        for transition in outcome.transitions:
            assert transition.source is state
            state = transition.target
        transitions += outcome.transitions
        outstanding = outcome.command
        refuses_all_but_answers(outcome.run)
        if isinstance(outstanding, Finish):
            break
        if data.draw(st.booleans()):  # what happens inside a command changes nothing of the run
            inside = [
                CallBegan("c1", "clock"),
                CallEnded(RECORD),
                StepEnded(data.draw(RESULTS), VALID),
                ChildAnswer("plan/a", data.draw(st.integers(1, 3)), answer_to(outstanding, data.draw)),
            ]
            entries.append(data.draw(st.sampled_from(inside)))
        entries.append(answer_to(outstanding, data.draw))
        outcome = machine.step(outcome.run, entries[-1])
    assert state in TERMINAL
    response = outstanding.response
    assert (response.failure is None) == (state is State.COMPLETE)
    assert (response.failure is not None and response.failure.code in CANCELLED) == (state is State.CANCELLED)

    stored = [entry_from_json(entry_to_json(entry)) for entry in entries]
    assert stored == entries
    found = replay(stored)
    assert list(found.transitions) == transitions
    assert found.outcome == outcome


FAILED = Failed(failure_of(ErrorCode.CANCELLED_SIGNAL, "x"))
INPUTS = (
    Prepared(),
    Planned(PLAN, USAGE),
    said("x"),
    said("", (CALL,)),
    Sampled((), USAGE),
    ToolsRan((RECORD,)),
    PlanRan(()),
    Enforced(VALID),
    FAILED,
)


def refuses_all_but_answers(run):
    """Assert that a run takes only what answers its outstanding command, and nothing when it has ended."""
    expected = () if isinstance(run.outstanding, Finish) else (run.outstanding.answer, Failed)
    for happened in INPUTS:
        if not isinstance(happened, expected):
            with pytest.raises(IllegalAnswerError, match=type(happened).__name__):
                machine.step(run, happened)


def test_a_journal_with_a_hole_is_not_taken_up():
    with pytest.raises(IllegalAnswerError, match="ToolsRan does not answer Prepare in PREPARE"):
        replay([Admitted(request(Mode.CHAT)), ToolsRan((RECORD,))])


CANCELLED = (ErrorCode.CANCELLED_TIMEOUT, ErrorCode.CANCELLED_SIGNAL)


def test_a_replay_that_stops_on_the_way_has_the_outstanding_command_and_what_it_did():
    ended = StepEnded(StepResult("a", "infer"))
    entries = [Admitted(request(Mode.PLAN, plan=PLAN)), Prepared(), CallBegan("a-1", "clock", "a"), ended]
    found = replay(entries)
    assert [transition.target for transition in found.transitions] == ["INIT", "PLAN", "PREPARE", "EXECUTE"]
    assert isinstance(found.outcome.command, RunPlan)
    assert found.progress == Progress([CallBegan("a-1", "clock", "a"), ended])
    ran = replay([*entries, PlanRan((ended.result,))])
    assert ran.progress == Progress()
    assert ran.outcome.run.state is State.COMPLETE


def test_what_has_no_admission_or_two_cannot_be_taken_again():
    for entries in ([], [Prepared()], [Admitted(request()), Admitted(request())]):
        with pytest.raises(ValueError, match="admi"):
            replay(entries)


def test_a_call_that_may_have_run_is_lost_unless_its_tool_is_idempotent():
    again = ToolDefinition("clock", "Tells the time.", "{}", idempotent=True)
    tools = {"clock": again, "pay": OTHER}
    began = [CallBegan("c1", "clock"), CallBegan("c2", "pay"), CallBegan("c3", "gone", "s")]
    progress = Progress([*began, CallEnded(RECORD)])
    calls = progress.calls_of("")
    assert calls.lost_call(tools) == began[1]
    assert Progress(began[:1]).calls_of("").lost_call(tools) is None
    assert progress.calls_of("s").lost_call(tools) == began[2]
    assert [calls.lost(call, tools) for call in ("c1", "c2", "c4")] == [None, began[1], None]
    assert progress.calls_of("s").lost("c3", tools) == began[2]
    assert calls.record_of("c1") == RECORD
    assert calls.record_of("c2") is None


def test_the_machine_of_a_step_goes_on_with_its_last_run_and_the_calls_since():
    first, second, call = (
        ChildAnswer("s", 1, Prepared()),
        ChildAnswer("s", 2, Prepared()),
        CallBegan("c1", "clock", "s"),
    )
    progress = Progress([first, ChildAnswer("t", 1, Prepared()), second, ChildAnswer("s", 2, said()), call])
    assert progress.run_of("s") == (2, (Prepared(), said()))
    assert progress.run_of("none") == (0, ())
    assert progress.calls_of("s").calls == (call,)
    assert progress.calls_of("s", since=len(progress.inner)).calls == ()
    assert progress.calls_of("t").calls == ()
    assert (progress.has_called("s"), progress.has_called("t")) == (True, False)


def test_a_call_of_an_unknown_tool_has_not_run():
    unknown = replace(RECORD, is_error=True, error_code=ErrorCode.TOOL_NOT_FOUND)
    progress = Progress([CallBegan(RECORD.id, "clok", "s"), CallEnded(unknown, "s")])
    assert not progress.has_called("s")


def test_a_failure_has_what_ended_inside_the_command_and_what_that_cost():
    outcome = machine.start(request(Mode.PLAN, plan=PLAN))
    outcome = machine.step(outcome.run, Prepared())
    progress = Progress()
    progress.add(ChildAnswer("plan/a", 1, Inferred(InferenceOutput("x", FinishReason.STOP, usage=USAGE))))
    progress.inference("plan/a").said = InferenceOutput("y", FinishReason.ERROR, usage=USAGE)
    progress.add(CallBegan("c1", "pay", "plan/a"))
    progress.add(CallGivenUp(RECORD, "plan/a"))
    failed = failed_with(outcome.run, progress, FAILED.failure)
    assert failed.records == (RECORD,)
    assert failed.usage == USAGE + USAGE
    progress.add(StepEnded(StepResult("a", "infer", usage=USAGE)))
    failed = failed_with(outcome.run, progress, FAILED.failure)
    assert failed.results == (StepResult("a", "infer", usage=USAGE),)
    assert failed.usage == TokenUsage(), "the step's result has it"
    ended = machine.step(outcome.run, failed)
    assert ended.run.usage == USAGE
    progress.answer(failed)
    assert progress == Progress()


def test_what_a_lost_inference_cost_is_charged_to_the_next_one():
    progress = Progress()
    progress.inference("").said = InferenceOutput("half", FinishReason.ERROR, usage=USAGE)
    progress.answer(Prepared())
    assert progress.inference("").usage == USAGE
    charged = progress.inference("").charge(InferenceOutput("x", FinishReason.STOP, usage=USAGE))
    progress.answer(Inferred(charged))
    assert charged.usage == USAGE + USAGE
    assert progress == Progress()


@pytest.mark.parametrize("document", [b"", b"[]", b'["Prepared"]', b'["Nothing",{}]', b'["Prepared",{"tools":1}]'])
def test_a_document_that_is_no_entry_says_so(document):
    with pytest.raises(UnreadableEntryError, match="cannot be read"):
        entry_from_json(document)
