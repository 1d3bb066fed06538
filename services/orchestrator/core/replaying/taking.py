"""Selects the results that a replay reuses from the record of an execution.

The reused answers must fit the commands of the changed request, so a machine tests them before the replay is admitted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.prompt import with_prepared
from services.orchestrator.core.execution.progress import CallEnded, StepEnded
from services.orchestrator.core.kernel.command import AnsweredCommand
from services.orchestrator.core.model.contract import ChangedResult, ReplayPolicy, ReplayTools
from services.orchestrator.core.model.plan import PLAN_PATH, Plan, PlanPolicy, Step, dependencies_of, path_of_step
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.plans.schedule import PlanSchedule
from services.orchestrator.core.plans.step_input import request_of_step
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.replaying.steps import Answers, Record, RecordedAnswer
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import ToolsRan
from services.orchestrator.core.turn.preparing import PREPARE
from services.orchestrator.core.turn.run import Outcome, Run

_FREE = TokenUsage()
MAX_NAMED_STEPS = 40  # A message with all steps could be too long.
# The fields that the step `prepare` resolves, with their names in the contract.
_SETTLED: Mapping[str, str] = MappingProxyType(
    {
        "output": "output",
        "tools": "tools",
        "client_tools": "client_tools",
        "tool_policy": "tool_rules",
        "context": "context",
        "text_prompt": "text_prompt",
    }
)


def take(request: Request, policy: ReplayPolicy, record: Record, bounds: PlanPolicy) -> RecordedAnswers:
    """Return the results that a replay reuses from a record. Raises InvalidRequest if the replay is impossible."""
    before = record.admitted.request
    if request.mode is not before.mode:
        raise InvalidRequest(f"the recorded request has mode {before.mode}, and its replay cannot have {request.mode}")
    owners = _owners_of(policy.results, record)
    first = policy.from_step or next((name for name in record.step_names if name in owners.values()), "")
    _check_step(first, record)
    answers = {"": _answers_before(first, record)}
    _check_prepared(request, before, takes_prepared=any(entry.name == PREPARE for entry in answers[""]))
    run = _run_after(machine.start(replace(request, is_guarded=False), bounds), answers[""])
    steps = _steps_beside(first, run.plan, record)
    if child := _child_before(first, run, steps, record):
        answers |= child
    _check_owners(owners, answers, steps)
    kept = _kept(answers)
    return RecordedAnswers(
        answers={path: tuple(map(_without_usage, entries)) for path, entries in answers.items()},
        steps=tuple(step_without_usage(entry) for entry in steps),
        calls=_calls_of(policy, record, kept, {entry.path for entry in steps}),
        kept=kept,
        seeds=record.seeds,
        makes_changes=policy.tools is ReplayTools.LIVE,
        has_other_prompt=request.prompt != before.prompt,
    )


def _check_step(name: str, record: Record) -> None:
    if name and name not in record.step_names:
        names = ", ".join(record.step_names[:MAX_NAMED_STEPS]) or "none"
        raise InvalidRequest(f"replay.from_step: the record has no step {name!r}; its steps: {names}")


def _owners_of(results: Sequence[ChangedResult], record: Record) -> dict[str, str]:
    """Return the step of each call that has a changed result, by the ID of the call."""
    made = {entry.record.id: entry.path for entry in record.calls if entry.path}
    for answer in record.steps:
        if isinstance(answer, RecordedAnswer) and isinstance(answer.gave, ToolsRan):
            made |= {call.id: answer.name for call in answer.gave.records}
    for result in results:
        if result.call_id not in made:
            raise InvalidRequest(
                f"replay.tool_results names the call {result.call_id!r}, which the record does not have: ListSteps, or "
                "pagantic replay ID --steps, has the ids"
            )
    return {result.call_id: made[result.call_id] for result in results}


def _check_owners(owners: Mapping[str, str], answers: Mapping[str, Answers], steps: Sequence[StepEnded]) -> None:
    """Raise InvalidRequest if a changed result would have no effect on reused results.

    This happens if reused answers depend on the recorded result, or if the plan step of the call is reused.
    """
    reused_steps = {entry.path for entry in steps}
    reused_names = reused_steps | {entry.name for entries in answers.values() for entry in entries[:-1]}
    for call_id, owner in owners.items():
        if owner in reused_names or _child_of(owner) in reused_steps:
            raise InvalidRequest(
                f"replay.tool_results changes the call {call_id!r}, but what follows from its step {owner!r} comes "
                "from the record: name that step in replay.from_step"
            )


def _answers_before(first: str, record: Record) -> tuple[RecordedAnswer, ...]:
    """Return the answers before the first step that runs again: by default, the answers up to PREPARE."""
    names = [answer.name for answer in record.answers]
    if first in names:
        return record.answers[: names.index(first)]
    return record.answers[: names.index(PREPARE) + 1] if PREPARE in names else ()


def _check_prepared(request: Request, before: Request, *, takes_prepared: bool) -> None:
    if takes_prepared:
        for name, field_name in _SETTLED.items():
            if getattr(request, name) != getattr(before, name):
                raise InvalidRequest(
                    f"{field_name} differs from the recorded request, and the step 'prepare' settles it: name that "
                    "step in replay.from_step"
                )
    elif before.is_turn:
        raise InvalidRequest(
            "the recorded execution was a turn of a conversation, whose step 'prepare' cannot run again: name a later "
            "one in replay.from_step"
        )


def _run_after(outcome: Outcome, answers: Sequence[RecordedAnswer]) -> Run:
    """Return the run of a started machine after it has processed the answers.

    Raises InvalidRequest if the changed request leads to different steps.
    """
    for answer in answers:
        command = outcome.command
        if not isinstance(command, AnsweredCommand) or not isinstance(answer.gave, command.answer):
            raise InvalidRequest(
                f"the changed request does not come to the step {answer.name!r}: name it, or an earlier one, in "
                "replay.from_step"
            )
        outcome = machine.step(outcome.run, answer.gave)
    return outcome.run


def _steps_beside(first: str, plan: Plan | None, record: Record) -> tuple[StepEnded, ...]:
    """Return the recorded plan steps to reuse.

    A step is reused unless it depends on a changed step, a failed step or the first step to run again.
    """
    if plan is None or not first.startswith(PLAN_PATH):
        return ()
    before = record.plan.steps if record.plan is not None else ()
    changed = {step.name for step in plan.steps if step not in before}
    failed = {ended_step.result.name for ended_step in record.plan_steps if ended_step.result.failure is not None}
    again = _with_dependents(changed | failed | {_child_of(first).removeprefix(PLAN_PATH)}, plan)
    return tuple(ended_step for ended_step in record.plan_steps if ended_step.result.name not in again)


def _with_dependents(names: set[str], plan: Plan) -> set[str]:
    """Return steps together with all steps that depend on them, directly or indirectly."""
    needed = dependencies_of(plan)
    while more := {name for name, inputs in needed.items() if name not in names and names.intersection(inputs)}:
        names = names | more
    return names


def _child_of(name: str) -> str:
    """Return the path of the child that a step belongs to, or an empty string for a step of the execution's machine."""
    return "/".join(name.split("/")[:2]) if "/" in name else ""


def _unchanged_step(first: str, plan: Plan, steps: Sequence[StepEnded], record: Record) -> Step:
    """Return the step whose child runs again from the middle. Raises InvalidRequest if it or an input changes."""
    path = _child_of(first)
    step = next((step for step in plan.steps if path_of_step(step.name) == path), None)
    if step is None or record.plan is None or step not in record.plan.steps:
        raise InvalidRequest(f"replay.from_step: step {path!r} was changed: name it in place of {first!r}")
    reused = {entry.result.name for entry in steps}
    if not reused.issuperset(dependencies_of(plan)[step.name]):
        raise InvalidRequest(f"replay.from_step: an input of step {path!r} changes: name it in place of {first!r}")
    return step


def _child_before(first: str, run: Run, steps: Sequence[StepEnded], record: Record) -> dict[str, Answers]:
    """Return the answers of a child before the first step that runs again, by its path, if the child has that step.

    Raises InvalidRequest if the changed request or its plan does not lead the child to that step.
    """
    path = _child_of(first)
    if path in ("", first) or run.plan is None:
        return {}
    step = _unchanged_step(first, run.plan, steps, record)
    before = tuple(takewhile(lambda answer: answer.name != first, record.children[path]))
    inputs = PlanSchedule(run.plan, tuple(entry.result for entry in steps)).inputs_of(step)
    request = request_of_step(step, run.plan, with_prepared(run.request, run.prepared), inputs)
    _run_after(machine.start(request), before)
    return {path: before}


def _without_usage(answer: RecordedAnswer) -> RecordedAnswer:
    return replace(answer, gave=answer.gave.as_recorded())


def _kept(answers: Mapping[str, Answers]) -> frozenset[tuple[str, str]]:
    return frozenset(
        (path, call.id)
        for path, entries in answers.items()
        for answer in entries
        if isinstance(answer.gave, ToolsRan)
        for call in answer.gave.records
    )


def _calls_of(
    policy: ReplayPolicy, record: Record, kept: Collection[tuple[str, str]], steps: Collection[str]
) -> tuple[CallEnded, ...]:
    """Return the calls with reused results, including the changed results.

    The calls of reused steps are omitted.
    """
    changes = {item.call_id: item for item in policy.results}
    is_live = policy.tools is ReplayTools.LIVE
    return tuple(
        _changed(item, changes.get(item.record.id))
        for item in record.calls
        if item.path not in steps and (not is_live or (item.path, item.record.id) in kept or item.record.id in changes)
    )


def _changed(call: CallEnded, change: ChangedResult | None) -> CallEnded:
    if change is None:
        return call
    return replace(call, record=replace(call.record, result=change.result, is_error=change.is_error, error_code=None))


def step_without_usage(ended: StepEnded) -> StepEnded:
    """Return the end of a plan's step without usage."""
    enforcement = ended.enforcement and replace(ended.enforcement, judge_usage=_FREE)
    return StepEnded(replace(ended.result, usage=_FREE), enforcement)
