"""One execution as a pure machine: what happened in, what to do next out.

Theory of operation. `step(run, input)` returns the run after the input, the lifecycle transitions that it made, and the
commands that the app carries out; their outcomes come back as inputs. At any time exactly one of MakePlan,
Prepare, Infer, Sample, RunTools, RunPlan and Enforce is outstanding, until Finish. Nothing here waits, calls or draws.

A vote's replicas are one Sample. Each passes the pipeline when it ends, so that a vote can be decided early; the votes
are counted in VALIDATE.

Invariants:
    1. Every transition is in the lifecycle's table.
    2. Each step of a live run gives exactly one outstanding command, or Finish; a terminal run takes no input.
    3. Tool calls that ran are in `records`, in order, whatever happens later; none runs twice.
    4. A response with no failure satisfies its schema, or says PARTIAL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCategory, ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role, ToolChoice
from pagantic_common.domain.validation import Enforcement, StageOutcome
from services.orchestrator.core.lifecycle import State, check_transition
from services.orchestrator.core.plan import Plan, PlanPolicy
from services.orchestrator.core.plan_result import accept_plan, content_of
from services.orchestrator.core.prompt import assemble_messages, feedback_message
from services.orchestrator.core.replicas import ballots_of, candidates_of, most_frequent_failure
from services.orchestrator.core.request import Mode, Request
from services.orchestrator.core.response import FinishReason, InferenceOutput, Response, ToolCallRecord
from services.orchestrator.core.retrieval import retrieval_confidence_of
from services.orchestrator.core.run import (
    Command,
    DiscardAttempt,
    Enforce,
    Enforced,
    Failed,
    Finish,
    Infer,
    Inferred,
    Input,
    MakePlan,
    Outcome,
    Planned,
    PlanRan,
    Prepare,
    Prepared,
    Run,
    RunPlan,
    RunTools,
    Sample,
    Sampled,
    ToolsRan,
    Transition,
)
from services.orchestrator.core.validation import confidence_of, report_of
from services.orchestrator.core.voting import DEFAULT_TEMPERATURE, count_votes


def start(request: Request, bounds: PlanPolicy | None = None) -> Outcome:
    """Begin an admitted request; a plan is checked under `bounds`."""
    admitted = Transition(None, State.INIT, 1, "request admitted")
    if request.mode is Mode.PLAN:
        outcome = _start_plan(Run(request=request, bounds=bounds or PlanPolicy()))
    else:
        outcome = _move(Run(request=request), State.PREPARE, "nothing to plan", Prepare())
    return replace(outcome, transitions=(admitted, *outcome.transitions))


def _start_plan(run: Run) -> Outcome:
    if run.request.plan is None:
        return _move(run, State.PLAN, "the planner makes the plan", MakePlan())
    moved = _move(run, State.PLAN, "the request brings its plan")
    outcome = _accept_plan(moved.run, run.request.plan)
    return replace(outcome, transitions=(*moved.transitions, *outcome.transitions))


def _accept_plan(run: Run, plan: Plan) -> Outcome:
    plan, failure = accept_plan(run.request, plan, run.bounds)
    run = replace(run, plan=plan)
    if failure:
        return _fail(run, failure)
    return _move(run, State.PREPARE, f"{len(plan.steps)} steps, by {plan.trace.planner_id}", Prepare())


def step(run: Run, happened: Input) -> Outcome:  # noqa: C901, PLR0911 - an arm for each input
    """Take what happened. Inputs that the state does not expect raise IllegalTransitionError."""
    match happened:
        case Failed():
            return _fail(_with_what_ended(run, happened), happened.failure)
        case Planned():
            return _accept_plan(replace(run, usage=run.usage + happened.usage), happened.plan)
        case PlanRan():
            return _after_plan(run, happened)
        case Prepared():
            is_tool_phase = bool(happened.tools)
            usage = run.usage + happened.usage
            run = replace(run, prepared=happened, is_in_tool_phase=is_tool_phase, usage=usage)
            if run.request.mode is Mode.REDUNDANT:
                return _move(run, State.EXECUTE, "prepared", _sample(run))
            if run.plan is not None:
                return _move(run, State.EXECUTE, "prepared", RunPlan(run.plan))
            return _move(run, State.EXECUTE, "prepared", _infer(run))
        case Inferred():
            run = replace(run, output=happened.output, usage=run.usage + happened.output.usage, rounds=run.rounds + 1)
            return _after_inference(run, happened.output)
        case Sampled():
            run = replace(run, replicas=happened.replicas, usage=run.usage + happened.usage)
            return _after_sampling(run)
        case ToolsRan():
            return _after_tools(run, happened.records)
        case Enforced() if run.count is not None:
            return _after_merging(run, happened.enforcement)
        case Enforced():
            return _after_enforcement(run, happened.enforcement)


def _after_inference(run: Run, output: InferenceOutput) -> Outcome:
    if output.tool_calls:
        if run.rounds >= run.request.max_tool_rounds:
            limit = run.request.max_tool_rounds
            message = f"the model still calls tools after {limit} inference rounds, the limit of hints.max_tool_rounds"
            return _fail(run, failure_of(ErrorCode.ORCHESTRATION_ITERATION_LIMIT, message))
        return Outcome(run, commands=(RunTools(output.tool_calls),))
    if run.rounds == 1 and run.is_in_tool_phase and run.request.hints.tool_choice.is_enforced:
        reason = "was cut off at max_tokens" if output.finish_reason is FinishReason.LENGTH else "is missing"
        return _fail(run, failure_of(ErrorCode.INFERENCE_MALFORMED_RESPONSE, f"the required tool call {reason}"))
    if run.is_in_tool_phase and _has_answer_phase(run):
        run = replace(run, is_in_tool_phase=False)
        return Outcome(run, commands=(_infer(run),))
    if not run.request.is_validated:
        return _complete(run, "answered")
    enforced = bool(_engine_text(run)) and run.prepared.is_fully_enforced and output.constraint_satisfied
    return _move(run, State.VALIDATE, "output produced", Enforce(output.content, is_decoder_enforced=enforced))


def _after_tools(run: Run, records: Sequence[ToolCallRecord]) -> Outcome:
    output = run.output or InferenceOutput("", FinishReason.TOOL)
    said = Message(Role.ASSISTANT, content=output.content, tool_calls=output.tool_calls)
    results = [
        Message(Role.TOOL, content=record.result, tool_call_id=record.id, name=record.name) for record in records
    ]
    run = replace(
        run,
        records=(*run.records, *records),
        transcript=(*run.transcript, said, *results),
        turn=(*run.turn, said, *results),
    )
    return Outcome(run, commands=(_infer(run),))


def _after_enforcement(run: Run, enforcement: Enforcement) -> Outcome:
    repaired = sum(1 for stage in enforcement.stages if stage.outcome is StageOutcome.REPAIRED)
    is_best = run.best is None or enforcement.valid or len(enforcement.violations) <= len(run.best.violations)
    run = replace(
        run,
        repair_attempts=run.repair_attempts + repaired,
        best=enforcement if is_best else run.best,
        last_failure=enforcement.failure,
    )
    if enforcement.valid:
        return _complete(run, "all stages passed")
    if run.attempt <= run.request.retry.max_retries:
        return _retry(run, enforcement)
    if not run.request.output.strict_validation:
        return _complete(run, f"attempts used up after {run.attempt}, strict_validation is off")
    return _fail(run, enforcement.failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed"))


def _retry(run: Run, enforcement: Enforcement) -> Outcome:
    discarded = DiscardAttempt(run.attempt, "validation failed")
    said = run.output.content if run.output else ""
    fed_back = feedback_message([violation.message for violation in enforcement.violations])
    added = (Message(Role.ASSISTANT, content=said), fed_back) if said else (fed_back,)
    retry = run.attempt
    run = replace(run, transcript=(*run.transcript, *added), attempt=run.attempt + 1)
    return _move(run, State.EXECUTE, "validation failed, a retry is left", discarded, _infer(run, retry))


def _with_what_ended(run: Run, failed: Failed) -> Run:
    """Keep what ended although the command that it is of did not."""
    usage = sum((result.usage for result in failed.results), run.usage)
    return replace(
        run,
        records=(*run.records, *failed.records),
        results=(*run.results, *failed.results),
        replicas=run.replicas or failed.replicas,
        usage=usage + failed.usage,
    )


def _after_plan(run: Run, ran: PlanRan) -> Outcome:
    usage = sum((result.usage for result in ran.results), run.usage)
    run = _with_best(replace(run, results=ran.results, records=ran.records, usage=usage), ran.enforcement)
    failed = next((result.failure for result in ran.results if result.failure is not None), None)
    if failed is not None:
        return _fail(run, failed)
    moved = _move(run, State.VALIDATE, f"{len(ran.results)} steps ended")
    done = _complete(moved.run, "each step satisfied its contract")
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


def _after_sampling(run: Run) -> Outcome:
    moved = _move(run, State.VALIDATE, f"{len(run.replicas)} of {run.request.voting.n} replicas ended")
    ended = _after_vote(moved.run)
    return replace(ended, transitions=(*moved.transitions, *ended.transitions))


def _after_vote(run: Run) -> Outcome:
    ballots = ballots_of(run.replicas)
    if not ballots and len(run.replicas) == run.request.voting.n:
        return _fail(run, most_frequent_failure(run.replicas))
    if not ballots:
        message = f"no consensus: all {len(run.replicas)} replicas that ended abstain, and that decides the vote"
        return _fail(run, failure_of(ErrorCode.ORCHESTRATION_NO_CONSENSUS, message))
    count = count_votes(ballots, run.request.voting)
    run = replace(run, count=count)
    if count.objection:
        return _fail(run, failure_of(ErrorCode.ORCHESTRATION_NO_CONSENSUS, f"no consensus: {count.objection}"))
    if count.winner is None:
        return Outcome(run, commands=(Enforce(count.merged_json, is_decoder_enforced=False),))
    winner = next(replica for replica in run.replicas if replica.index == count.winner)
    return _complete(_with_best(run, winner.enforcement), "the vote has a winner")


def _with_best(run: Run, enforcement: Enforcement | None) -> Run:
    stages = enforcement.stages if enforcement is not None else ()
    repaired = sum(1 for stage in stages if stage.outcome is StageOutcome.REPAIRED)
    return replace(run, best=enforcement, repair_attempts=run.repair_attempts + repaired)


def _after_merging(run: Run, enforcement: Enforcement) -> Outcome:
    run = _with_best(run, enforcement)
    if enforcement.valid:
        return _complete(run, "each field has a winner")
    failure = enforcement.failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed")
    return _fail(run, failure)


def _has_answer_phase(run: Run) -> bool:
    """Whether the answer is inferred on its own, constrained, once the model has done with its tools."""
    return run.request.mode is Mode.STRUCTURED or bool(run.prepared.engine_text)


def _engine_text(run: Run) -> str:
    return "" if run.is_in_tool_phase else run.prepared.engine_text


def _infer(run: Run, retry: int = 0) -> Infer:
    hints = run.request.hints
    tools = run.prepared.tools if run.is_in_tool_phase else ()
    return Infer(
        messages=assemble_messages(run.request, run.prepared, run.transcript),
        tools=tools,
        tool_choice=hints.tool_choice if tools and run.rounds == 0 else ToolChoice(),
        engine_text=_engine_text(run),
        seed=None if hints.seed is None else (hints.seed + run.attempt - 1) % 2**64,
        retry=retry,
        is_streamed=not (run.is_in_tool_phase and _has_answer_phase(run)),
    )


def _complete(run: Run, reason: str) -> Outcome:
    response = _response(run)
    if response.confidence is None and (confidence := retrieval_confidence_of(run)) is not None:
        response = replace(response, confidence=confidence, confidence_source="RETRIEVAL")
    turn: tuple[Message, ...] = ()
    if run.request.mode is Mode.CHAT and run.request.session_id:
        asked = [message for message in run.request.messages if message.role is not Role.SYSTEM]
        answer = Message(Role.ASSISTANT, content=response.content)
        turn = (*asked, *run.turn, *((answer,) if response.content else ()))
    return _move(run, State.COMPLETE, reason, Finish(response, turn))


def _fail(run: Run, failure: Failure) -> Outcome:
    if run.last_failure is not None and run.last_failure != failure:
        failure = failure.because_of(run.last_failure)
    run = replace(run, last_failure=failure, count=run.count and replace(run.count, agreement=0.0))
    target = State.CANCELLED if failure.category is ErrorCategory.CANCELLATION else State.ERROR
    code = failure.code.value if failure.code else "internal error"
    return _move(run, target, code, Finish(replace(_response(run), failure=failure)))


def _response(run: Run) -> Response:
    best = run.best
    content = best.output if best else (run.output.content if run.output else content_of(run.plan, run.results))
    confidence, source = confidence_of(run.request, best, run.count)
    report = report_of(run.request, best, run.repair_attempts) if best else None
    if report and run.count and len(run.replicas) < run.request.voting.n:
        report = replace(report, warnings=(*report.warnings, _early_warning(run)))
    return Response(
        request_id=run.request.request_id,
        session_id=run.request.session_id,
        content=content,
        structured_output_json=best.structured_output_json if best else "",
        tool_calls_made=run.records,
        confidence=confidence,
        confidence_source=source,
        validation=report,
        candidates=candidates_of(run),
        step_results=run.results,
        usage=run.usage,
    )


def _early_warning(run: Run) -> str:
    n = run.request.voting.n
    return f"decided after {len(run.replicas)} of {n} replicas: confidence is a lower bound"


def _move(run: Run, target: State, reason: str, *commands: Command) -> Outcome:
    check_transition(run.state, target)
    transition = Transition(run.state, target, run.attempt, reason)
    return Outcome(replace(run, state=target), (transition,), commands)
