"""What replays take from random journals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.progress import CallEnded, ChildAnswer, StepEnded
from services.orchestrator.core.execution.replay import Admitted
from services.orchestrator.core.model.contract import ReplayPolicy
from services.orchestrator.core.model.plan import PLAN_PATH, Plan, PlanPolicy, Step, StepResult
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.replaying.steps import read_record
from services.orchestrator.core.replaying.taking import take
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import RunTools
from services.orchestrator.core.turn.ending import Finish
from services.orchestrator.core.turn.plan_steps import PlanRan, RunPlan
from services.orchestrator.core.turn.preparing import PREPARE, InputChecked, Prepare
from tests.unit.orchestrator.test_machine import USAGE, VALID, request, said
from tests.unit.orchestrator.test_replay import answer_to, requests

BOUNDS = PlanPolicy(max_steps=5)


def entries_of(data, work):
    """Return the entries of an execution, and its outcomes, the first one before any input."""
    outcome = machine.start(work, BOUNDS)
    entries, outcomes = [Admitted(work, BOUNDS)], [outcome]
    while not isinstance(outcome.command, Finish):
        entries.append(answer_to(outcome.command, data.draw))
        outcome = machine.step(outcome.run, entries[-1])
        outcomes.append(outcome)
    return entries, outcomes


def without_session(work):
    kept = ("hints", "retry", "output", "voting", "plan", "decisions")
    return request(work.mode, **{name: getattr(work, name) for name in kept})


@given(st.data())
def test_a_replay_without_changes_comes_to_each_step_as_the_execution_did(data):
    work = data.draw(requests())
    entries, outcomes = entries_of(data, work)
    record, again = read_record(entries), without_session(work)
    assert len(set(record.step_names)) == len(record.step_names)
    for position, name in enumerate(record.step_names):
        if work.is_turn and name == PREPARE:
            with pytest.raises(InvalidRequest, match="turn of a conversation"):
                take(again, ReplayPolicy("r", name), record, BOUNDS)
            continue
        taken = take(again, ReplayPolicy("r", name), record, BOUNDS)
        outcome = machine.start(again, BOUNDS)
        transitions = [*outcome.transitions]
        for step_name in record.step_names[:position]:
            assert taken.step_at("", outcome.run.position) == step_name
            answer = taken.answers[""][outcome.run.position].gave
            assert answer.total_usage == TokenUsage()
            given_at_once = not isinstance(outcome.command, Prepare | RunTools | RunPlan)
            expected = answer if given_at_once else None
            assert taken.answer_at("", outcome.run.position, outcome.command) == expected
            outcome = machine.step(outcome.run, answer)
            transitions += outcome.transitions
        assert taken.step_at("", outcome.run.position) == ""
        assert taken.answer_at("", outcome.run.position, outcome.command) is None
        assert type(outcome.command) is type(outcomes[position].command)
        assert transitions == [one for each in outcomes[: position + 1] for one in each.transitions]


PLAN = Plan((
    Step("a", "infer"), Step("b", "infer", depends_on=("a",)), Step("c", "infer", depends_on=("a",)),
    Step("d", "infer", depends_on=("b", "c")), Step("e", "infer", depends_on=("c",)),
))  # fmt: skip


@given(st.sampled_from("abcde"), st.sampled_from(["", *"abcde"]))
def test_of_a_plan_nothing_is_taken_that_depends_on_a_step_that_runs_again(first, changed):
    results = [StepEnded(StepResult(step.name, step.kind, usage=USAGE), VALID) for step in PLAN.steps]
    work = request(Mode.PLAN, plan=PLAN)
    record = read_record([Admitted(work, BOUNDS), Prepared(), *results, PlanRan(tuple(one.result for one in results))])
    steps = tuple(
        Step(step.name, step.kind, {"prompt": "Other."}, depends_on=step.depends_on) if step.name == changed else step
        for step in PLAN.steps
    )
    taken = take(request(Mode.PLAN, plan=Plan(steps)), ReplayPolicy("r", PLAN_PATH + first), record, BOUNDS)
    below = {"a": "abcde", "b": "bd", "c": "cde", "d": "d", "e": "e", "": ""}
    expected = set("abcde") - set(below[first]) - set(below[changed])
    assert {one.result.name for one in taken.steps} == expected
    assert all(one.result.usage == TokenUsage() for one in taken.steps)


def test_the_seeds_are_those_of_the_last_run_of_each_machine():
    def inferred(seed):
        answer = said("x")
        return replace(answer, output=replace(answer.output, seed=seed))

    answers = [InputChecked(), Prepared(), inferred(2)]
    inside = [ChildAnswer("plan/a", 1, inferred(1)), *(ChildAnswer("plan/a", 2, answer) for answer in answers)]
    record = read_record(
        [Admitted(request(Mode.PLAN, plan=PLAN, is_guarded=True)), InputChecked(), Prepared(), *inside]
    )
    assert record.seeds == {"": (None,), "plan/a": (None, 2)}


def call(arguments, call_id="new"):
    return ToolCall(call_id, "clock", arguments)


def recorded(call_id, arguments, path=""):
    return CallEnded(ToolCallRecord(call_id, "clock", arguments, call_id, False, None, 0.0), path)


def test_a_call_has_the_result_of_an_equal_one_and_each_result_is_given_once():
    taken = RecordedAnswers(
        {}, calls=(recorded("1", '{"a": 1, "b": 2}'), recorded("2", '{"b":2,"a":1}', "s"), recorded("3", "{}"))
    )
    given = set()
    for _ in range(2):
        found = taken.find_call(call('{"b": 2, "a": 1}'), "", given)
        given.add(found.id)
    assert given == {"1", "2"}
    assert taken.find_call(call('{"b": 2, "a": 1}'), "", given) is None
    assert taken.find_call(call('{"a": 1, "b": 2}'), "s", set()).id == "2"
    assert taken.find_call(call('{"a": 1, "b": 2}', "1"), "s", set()).id == "1"
    assert taken.find_call(call('{"a": 1}', "1"), "", set()) is None
    assert taken.find_call(call("no JSON"), "", set()) is None
    assert taken.find_call(call('{"a": true, "b": 2}'), "", set()) is None
    kept = replace(taken, kept=frozenset({("", "3")}))
    assert kept.find_call(call('{"approved": "otherwise"}', "3"), "", set()).id == "3"
    assert kept.find_call(call("{}"), "", set()) is None
    assert taken.find_call(ToolCall("3", "pay", "{}"), "", set()) is None


def test_entries_that_are_not_those_of_an_execution_are_refused():
    for entries in ([], [Prepared()], [Admitted(request(Mode.CHAT)), Admitted(request(Mode.CHAT))]):
        with pytest.raises(ValueError, match="admi"):
            read_record(entries)
