"""One execution as a pure machine: what happened in, what to do next out.

Theory of operation. `step(run, input)` returns the run after the input and the lifecycle transitions that it made.
The run has one outstanding command, which the app carries out; its outcome comes back as the next input. Nothing here
waits, calls or draws.

A vote's replicas are one Sample. Each passes the pipeline when it ends, so that a vote can be decided early; the votes
are counted in VALIDATE.

Invariants:
    1. Every transition is in the lifecycle's table.
    2. A live run has one outstanding command and takes its answer (`ANSWER_OF`) or Failed; a terminal run has Finish
       and takes no input.
    3. Tool calls that ran are in `records`, in order, whatever happens later; none runs twice.
    4. A response with no failure satisfies its schema, or says PARTIAL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role, ToolChoice
from pagantic_common.domain.validation import Enforcement, StageOutcome
from services.orchestrator.core.conversation.prompt import answer_now_message, assemble_messages, feedback_message
from services.orchestrator.core.execution.commands import (
    ANSWER_OF,
    Enforce,
    Infer,
    MakePlan,
    Prepare,
    RunPlan,
    RunTools,
    Sample,
)
from services.orchestrator.core.execution.ending import ask, complete, fail, move
from services.orchestrator.core.execution.inputs import (
    Enforced,
    Failed,
    Inferred,
    Input,
    Planned,
    PlanRan,
    Sampled,
    ToolsRan,
    usage_of,
)
from services.orchestrator.core.execution.lifecycle import IllegalInputError, State
from services.orchestrator.core.execution.repeated_calls import repeats_round, result_messages
from services.orchestrator.core.execution.replicas import ballots_of, most_frequent_failure
from services.orchestrator.core.execution.run import DiscardedAttempt, Outcome, Run, Transition
from services.orchestrator.core.execution.truncation import is_cut, raised_limit, truncation_of
from services.orchestrator.core.model.plan import Plan, PlanPolicy
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.voting import DEFAULT_TEMPERATURE, count_votes
from services.orchestrator.core.plans.result import accept_plan

STRUCTURED_TEMPERATURE = 0.0  # unless hinted: who asks for data wants the likeliest


def start(request: Request, bounds: PlanPolicy | None = None) -> Outcome:
    """Begin an admitted request; a plan is checked under `bounds`."""
    admitted = Transition(None, State.INIT, 1, "request admitted")
    if request.mode is Mode.PLAN:
        outcome = _start_plan(Run(request=request, bounds=bounds or PlanPolicy()))
    else:
        outcome = move(Run(request=request), State.PREPARE, "no plan is needed", Prepare())
    return replace(outcome, transitions=(admitted, *outcome.transitions))


def _start_plan(run: Run) -> Outcome:
    if run.request.plan is None:
        return move(run, State.PLAN, "the planner makes the plan", MakePlan())
    moved = move(run, State.PLAN, "the request brings its plan")
    outcome = _accept_plan(moved.run, run.request.plan)
    return replace(outcome, transitions=(*moved.transitions, *outcome.transitions))


def _accept_plan(run: Run, plan: Plan) -> Outcome:
    plan, failure = accept_plan(run.request, plan, run.bounds)
    run = replace(run, plan=plan)
    if failure:
        return fail(run, failure)
    return move(run, State.PREPARE, f"{len(plan.steps)} steps, by {plan.trace.planner_id}", Prepare())


def step(run: Run, happened: Input) -> Outcome:  # noqa: PLR0911 - an arm for each input
    """Take what happened; raises IllegalInputError for what does not answer the outstanding command."""
    _check_answer(run, happened)
    run = replace(run, usage=run.usage + usage_of(happened))
    match happened:
        case Failed():
            return fail(_with_partial_results(run, happened), happened.failure)
        case Planned():
            return _accept_plan(replace(run, model=happened.model or run.model), happened.plan)
        case PlanRan():
            return _after_plan(run, happened)
        case Prepared():
            return _after_preparing(replace(run, prepared=happened, is_in_tool_phase=bool(happened.tools)))
        case Inferred():
            output = happened.output
            run = replace(run, output=output, rounds=run.rounds + 1, model=output.model or run.model)
            return _after_inference(run, output)
        case Sampled():
            return _after_sampling(_with_replicas(run, happened))
        case ToolsRan():
            return _after_tools(run, happened.records)
        case Enforced() if run.count is not None:
            return _after_merging(run, happened.enforcement)
        case Enforced():
            return _after_enforcement(run, happened.enforcement)


def _after_preparing(run: Run) -> Outcome:
    if run.request.mode is Mode.REDUNDANT:
        return move(run, State.EXECUTE, "prepared", _sample(run))
    if run.plan is not None:
        return move(run, State.EXECUTE, "prepared", RunPlan(run.plan))
    return move(run, State.EXECUTE, "prepared", _infer(run))


def _check_answer(run: Run, happened: Input) -> None:
    answer = ANSWER_OF.get(type(run.outstanding)) if run.outstanding is not None else None
    if answer is None or not isinstance(happened, answer | Failed):
        asked, given = type(run.outstanding).__name__, type(happened).__name__
        raise IllegalInputError(f"{given} does not answer {asked} in {run.state}")


def _after_inference(run: Run, output: InferenceOutput) -> Outcome:
    if output.tool_calls:
        return _run_tools(run, output)
    if run.rounds == 1 and run.is_in_tool_phase and run.request.hints.tool_choice.is_enforced:
        return _without_required_call(run, output)
    if run.is_in_tool_phase and _has_answer_phase(run):
        run = replace(run, is_in_tool_phase=False)
        return ask(run, _infer(run))
    if run.request.output.is_empty and _is_silent(run, output):
        return _after_empty_answer(run, output)
    if not run.request.is_validated:
        return complete(run, "answered")
    enforced = bool(_engine_text(run)) and run.prepared.is_fully_enforced and output.constraint_satisfied
    return move(run, State.VALIDATE, "output produced", Enforce(output.content, is_decoder_enforced=enforced))


def _without_required_call(run: Run, output: InferenceOutput) -> Outcome:
    if output.finish_reason is FinishReason.LENGTH:
        return fail(run, truncation_of(run.request, output, run.max_tokens))
    return fail(run, failure_of(ErrorCode.INFERENCE_MALFORMED_RESPONSE, "the required tool call is missing"))


def _is_silent(run: Run, output: InferenceOutput) -> bool:
    """Tell whether an answer has no word; one that a stop text ended at once may be empty."""
    was_stopped = bool(run.request.hints.stop) and not output.reasoning
    return not output.content.strip() and not was_stopped


def _run_tools(run: Run, output: InferenceOutput) -> Outcome:
    """Run the calls of a round; a model that only repeats the round before goes on without tools."""
    limit = run.request.max_tool_rounds
    if run.rounds >= limit:
        message = f"the model still calls tools after {limit} inference rounds, the limit of hints.max_tool_rounds"
        return fail(run, failure_of(ErrorCode.ORCHESTRATION_ITERATION_LIMIT, message))
    if repeats_round(output.tool_calls, run.latest):
        return _after_round(_without_tools(run))
    return ask(run, RunTools(output.tool_calls))


def _without_tools(run: Run) -> Run:
    return replace(run, has_tools_left=False, is_in_tool_phase=run.is_in_tool_phase and not _has_answer_phase(run))


def _after_empty_answer(run: Run, output: InferenceOutput) -> Outcome:
    """Ask once more, without tools, when tools have run; otherwise fail."""
    if output.finish_reason is FinishReason.LENGTH:
        return fail(run, truncation_of(run.request, output, run.max_tokens))
    if run.records and run.is_in_tool_phase and run.has_tools_left:
        run = _without_tools(run)
        run = replace(run, transcript=(*run.transcript, answer_now_message()))
        return ask(run, _infer(run))
    return fail(run, failure_of(ErrorCode.INFERENCE_MALFORMED_RESPONSE, "the model gave an empty answer"))


def _after_tools(run: Run, records: Sequence[ToolCallRecord]) -> Outcome:
    return _after_round(replace(run, records=(*run.records, *records), latest=tuple(records)))


def _after_round(run: Run) -> Outcome:
    """Go on with the results of the latest round; the model is urged to answer when it has no tools left."""
    output = run.output or InferenceOutput("", FinishReason.TOOL)
    said = Message(Role.ASSISTANT, content=output.content, reasoning=output.reasoning, tool_calls=output.tool_calls)
    results = result_messages(output.tool_calls, run.latest)
    is_urged = not run.has_tools_left and not _has_answer_phase(run)
    urged = (answer_now_message(),) if is_urged else ()
    run = replace(
        run,
        transcript=(*run.transcript, said, *results, *urged),
        turn=(*run.turn, said, *results),
    )
    return ask(run, _infer(run))


def _after_enforcement(run: Run, enforcement: Enforcement) -> Outcome:
    output = run.output or InferenceOutput("", FinishReason.STOP)
    cut = truncation_of(run.request, output, run.max_tokens) if is_cut(run.request, run.output, enforcement) else None
    is_right = enforcement.valid and cut is None
    is_best = run.best is None or is_right or len(enforcement.violations) <= len(run.best.violations)
    run = replace(
        run,
        repair_attempts=run.repair_attempts + _repairs(enforcement),
        best=enforcement if is_best else run.best,
        best_output=output if is_best else run.best_output,
        cut=cut if is_best else run.cut,
        last_failure=cut or enforcement.failure,
    )
    if is_right:
        return complete(run, "all stages passed")
    if (retried := _retry(run, enforcement, output, cut)) is not None:
        return retried
    if not run.request.output.strict_validation:
        return complete(run, f"attempts used up after {run.attempt}, strict_validation is off")
    failure = cut or enforcement.failure
    return fail(run, failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed"))


def _repairs(enforcement: Enforcement) -> int:
    return sum(1 for stage in enforcement.stages if stage.outcome is StageOutcome.REPAIRED)


def _retry(run: Run, enforcement: Enforcement, output: InferenceOutput, cut: Failure | None) -> Outcome | None:
    """Try again while retries are left: with a higher limit when the answer was cut, else with what is wrong."""
    if run.attempt > run.request.retry.max_retries:
        return None
    if cut is None:
        fed_back = feedback_message([violation.message for violation in enforcement.violations])
        said = Message(Role.ASSISTANT, content=output.content, reasoning=output.reasoning)
        added = (said, fed_back) if output.content else (fed_back,)
        changed = replace(run, transcript=(*run.transcript, *added), max_tokens=0)
        reason = "validation failed"
    else:
        raised = raised_limit(run.request, output, run.max_tokens)
        if not raised:
            return None
        changed = replace(run, max_tokens=raised)
        reason = "the answer was cut"
    changed = replace(changed, attempt=run.attempt + 1)
    retried = move(changed, State.EXECUTE, f"{reason}, a retry is left", _infer(changed, run.attempt))
    return replace(retried, discarded=DiscardedAttempt(run.attempt, reason))


def _with_partial_results(run: Run, failed: Failed) -> Run:
    """Keep the partial results of a failed command."""
    run = replace(
        run,
        records=(*run.records, *failed.records),
        results=(*run.results, *failed.results),
        replicas=run.replicas or failed.replicas,
    )
    said = failed.output
    if said is None:
        return run
    run = replace(run, model=said.model or run.model)
    if said.content or said.reasoning:
        return replace(run, streamed=said)
    return run


def _after_plan(run: Run, ran: PlanRan) -> Outcome:
    run = _with_best(
        replace(run, results=ran.results, records=ran.records, model=ran.model or run.model), ran.enforcement
    )
    failed = next((result.failure for result in ran.results if result.failure is not None), None)
    if failed is not None:
        return fail(run, failed)
    moved = move(run, State.VALIDATE, f"{len(ran.results)} steps ended")
    done = complete(moved.run, "each step satisfied its contract")
    return replace(done, transitions=(*moved.transitions, *done.transitions))


def _sample(run: Run) -> Sample:
    request = run.request
    temperature = request.hints.temperature
    return Sample(
        messages=assemble_messages(request, run.prepared, ()),
        engine_text=run.prepared.engine_text,
        is_fully_enforced=run.prepared.is_fully_enforced,
        voting=request.voting,
        temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
        seed=request.hints.seed,
    )


def _with_replicas(run: Run, sampled: Sampled) -> Run:
    return replace(run, replicas=sampled.replicas, seed=sampled.seed, model=sampled.model or run.model)


def _after_sampling(run: Run) -> Outcome:
    moved = move(run, State.VALIDATE, f"{len(run.replicas)} of {run.request.voting.n} replicas ended")
    ended = _after_vote(moved.run)
    return replace(ended, transitions=(*moved.transitions, *ended.transitions))


def _after_vote(run: Run) -> Outcome:
    ballots = ballots_of(run.replicas)
    if not ballots and len(run.replicas) == run.request.voting.n:
        return fail(run, most_frequent_failure(run.replicas))
    if not ballots:
        message = f"no consensus: all {len(run.replicas)} replicas that ended abstain, and that decides the vote"
        return fail(run, failure_of(ErrorCode.ORCHESTRATION_NO_CONSENSUS, message))
    count = count_votes(ballots, run.request.voting)
    run = replace(run, count=count)
    if count.objection:
        return fail(run, failure_of(ErrorCode.ORCHESTRATION_NO_CONSENSUS, f"no consensus: {count.objection}"))
    if count.winner is None:
        return ask(run, Enforce(count.merged_json, is_decoder_enforced=False))
    winner = next(replica for replica in run.replicas if replica.index == count.winner)
    return complete(_with_best(run, winner.enforcement), "the vote has a winner")


def _with_best(run: Run, enforcement: Enforcement | None) -> Run:
    repaired = _repairs(enforcement) if enforcement is not None else 0
    return replace(run, best=enforcement, repair_attempts=run.repair_attempts + repaired)


def _after_merging(run: Run, enforcement: Enforcement) -> Outcome:
    run = _with_best(run, enforcement)
    if enforcement.valid:
        return complete(run, "each field has a winner")
    failure = enforcement.failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed")
    return fail(run, failure)


def _has_answer_phase(run: Run) -> bool:
    """Whether the answer is inferred on its own, constrained, once the model has done with its tools."""
    return run.request.mode is Mode.STRUCTURED or bool(run.prepared.engine_text)


def _engine_text(run: Run) -> str:
    return "" if run.is_in_tool_phase else run.prepared.engine_text


def _infer(run: Run, retry: int = 0) -> Infer:
    hints = run.request.hints
    tools = run.prepared.tools if run.is_in_tool_phase and run.has_tools_left else ()
    is_greedy = run.request.mode is Mode.STRUCTURED and hints.temperature is None
    return Infer(
        messages=assemble_messages(run.request, run.prepared, run.transcript),
        tools=tools,
        tool_choice=hints.tool_choice if tools and run.rounds == 0 else ToolChoice(),
        engine_text=_engine_text(run),
        seed=None if hints.seed is None else (hints.seed + run.attempt - 1) % 2**64,
        retry=retry,
        is_streamed=not (run.is_in_tool_phase and _has_answer_phase(run)),
        max_tokens=run.max_tokens,
        temperature=STRUCTURED_TEMPERATURE if is_greedy else None,
    )
