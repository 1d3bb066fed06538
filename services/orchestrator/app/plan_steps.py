"""Runs the steps of a plan, as many at the same time as may, and tells of each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Failure,
    InvalidRequest,
    PaganticError,
    PreconditionFailed,
    failure_of,
)
from pagantic_common.domain.messages import ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects import Effects
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recorder import Recorder, attempt_scope
from services.orchestrator.app.services import Services
from services.orchestrator.core import events, machine
from services.orchestrator.core.plan import (
    RETRIEVERS,
    Plan,
    Proposal,
    Step,
    StepKind,
    StepResult,
    Value,
    ValueKind,
    retry_of,
)
from services.orchestrator.core.plan_progress import PlanProgress
from services.orchestrator.core.prompt import last_user_text
from services.orchestrator.core.replay import NestedInput, Progress, StepEnded
from services.orchestrator.core.request import ContextPolicy, Mode, Request
from services.orchestrator.core.response import ToolCallRecord
from services.orchestrator.core.response_warning import ResponseWarning
from services.orchestrator.core.run import Enforce, Finish, PlanRan, Run
from services.orchestrator.core.step_input import arguments_of, messages_of, result_value, text_of, value_of
from services.orchestrator.ports.services import Ranking

log = get_logger(__name__)

_HINTS = ("max_tokens", "temperature", "top_p", "seed", "model")  # parameters of an infer step that are hints
_NOT_SATISFIED = "step {!r} passes on an output that does not satisfy its contract: strict_validation is off"


@dataclass(frozen=True, slots=True)
class _Done:
    """What one attempt of a step gave."""

    output: Value
    usage: TokenUsage = TokenUsage()
    enforcement: Enforcement | None = None
    warnings: tuple[ResponseWarning, ...] = ()


class _StepFailedError(Exception):
    """The step failed, and has cost something."""

    def __init__(self, failure: Failure, usage: TokenUsage) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.usage = usage


class PlanSteps:
    """The steps of one plan; `results` and `records` grow while they run, from what had ended in `progress`."""

    def __init__(
        self,
        request: Request,
        plan: Plan,
        tools: Sequence[ToolDefinition],
        *,
        services: Services,
        clock: Clock,
        recorder: Recorder,
        new_effects: Callable[[str], Effects],
        progress: Progress,
    ) -> None:
        self._request = request
        self._plan = plan
        self._tools = {tool.name: tool for tool in tools}
        self._services = services
        self._clock = clock
        self._recorder = recorder
        self._new_effects = new_effects
        self._final = plan.steps[-1].name if plan.steps else ""
        self._progress = progress
        self._enforcement = next((one.enforcement for one in progress.steps if one.result.name == self._final), None)
        self.results: list[StepResult] = [one.result for one in progress.steps]
        self.records: list[ToolCallRecord] = list(progress.records)
        self._calls = len(progress.began)  # what began has its id, whether it ended or not
        self._runs: dict[str, int] = {}
        self._spent: dict[str, TokenUsage] = {}
        self._paid: dict[str, TokenUsage] = {}  # cost of each step's failed attempts
        self._called: set[str] = set()  # infer steps whose model has called tools
        self._model = ""  # the alias that served the last inference

    @property
    def unended_usage(self) -> TokenUsage:
        """What steps cost that have not ended."""
        ended = {result.name for result in self.results}
        costs = [*self._spent.items(), *self._paid.items()]
        return sum((usage for step, usage in costs if step not in ended), TokenUsage())

    async def run(self) -> PlanRan:
        """Run all steps, or up to the first that fails; what runs beside it ends first."""
        progress = PlanProgress(self._plan, tuple(self.results))
        running: set[asyncio.Task[StepResult]] = set()
        try:
            while True:
                for step in progress.ready():
                    running.add(asyncio.create_task(self._run_step(step, progress.inputs_of(step))))
                    progress = progress.started(step)
                if not running:
                    break
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    progress = progress.ended(task.result())
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        return PlanRan(progress.results, tuple(self.records), self._enforcement, self._model)

    async def _run_step(self, step: Step, inputs: Mapping[str, Value]) -> StepResult:
        request = self._request
        correlation = CorrelationContext(
            request_id=request.request_id, session_id=request.session_id, step_name=step.name
        )
        with work_scope(correlation=correlation):
            start = events.StepStart(step.name, step.kind)
            await self._recorder.emit(start, caused_by=next(iter(inputs), "request"))
            started_s = self._clock.monotonic_s()
            result = await self._attempts(step, inputs)
            took_s = self._clock.monotonic_s() - started_s
            result = replace(result, duration_s=took_s)
            self.results.append(result)
            self._recorder.set_last_step(step.name, result.failure)
            await self._recorder.emit(
                events.StepEnd(step.name, step.kind, success=result.failure is None),
                entries=[StepEnded(result, self._enforcement if step.name == self._final else None)],
                is_durable=True,  # it will not run again
                duration_s=took_s,
                failure=result.failure,
                caused_by=step.name,
            )
        return result

    async def _attempts(self, step: Step, inputs: Mapping[str, Value]) -> StepResult:
        retry = retry_of(step, self._request.retry)
        max_attempts = 1 + retry.max_retries
        usage = TokenUsage()
        attempt = 0
        while True:
            attempt += 1
            try:
                with attempt_scope(attempt):
                    done = await self._attempt(step, inputs)
            except _StepFailedError as error:
                usage += error.usage
                self._paid[step.name] = usage
                failure = error.failure
            else:
                if step.name == self._final:
                    self._enforcement = done.enforcement
                usage += done.usage
                return StepResult(
                    step.name, step.kind, output=done.output, attempts=attempt, usage=usage, warnings=done.warnings
                )
            self._spent.pop(step.name, None)
            if not failure.retryable or attempt >= max_attempts:
                return StepResult(step.name, step.kind, failure=failure, attempts=attempt, usage=usage)
            if step.kind == StepKind.INFER:  # what it has streamed so far comes again
                await self._discard(attempt, failure.message)
            await asyncio.sleep(retry.wait_s(attempt, random.random()))  # noqa: S311 - no secret

    async def _discard(self, attempt: int, reason: str) -> None:
        discarded = events.AttemptDiscarded(attempt, reason)
        with attempt_scope(attempt):
            await self._recorder.emit(discarded)

    async def _attempt(self, step: Step, inputs: Mapping[str, Value]) -> _Done:
        timeouts = [timeout for timeout in (step.timeout_s, self._plan.policy.timeout_per_step_s) if timeout]
        timeout_s = min(timeouts) if timeouts else None
        deadline = Deadline.after(time.monotonic(), timeout_s)
        try:
            with work_scope(deadline=deadline):
                async with asyncio.timeout(timeout_s):
                    return await self._do(step, inputs)
        except TimeoutError as error:
            if not deadline.has_passed(time.monotonic()):
                raise self._unexpected(step, error) from None
            raise self._timed_out(step, timeout_s) from None
        except _StepFailedError as error:
            is_late = error.failure.code is ErrorCode.CANCELLED_TIMEOUT and deadline.has_passed(time.monotonic())
            if is_late:
                raise self._timed_out(step, timeout_s) from None
            raise
        except DeadlineExceeded as error:
            if deadline.has_passed(time.monotonic()):
                raise self._timed_out(step, timeout_s) from None
            raise _StepFailedError(failure_from(error), TokenUsage()) from None
        except PaganticError as error:
            raise _StepFailedError(failure_from(error), TokenUsage()) from None
        except Exception as error:  # noqa: BLE001 - it is logged, and told by its id
            raise self._unexpected(step, error) from None

    def _unexpected(self, step: Step, error: Exception) -> _StepFailedError:
        message = f"step {step.name!r}: {report_bug(log, error, step=step.name)}"
        return _StepFailedError(Failure(code=None, message=message), TokenUsage())

    def _timed_out(self, step: Step, timeout_s: float | None) -> _StepFailedError:
        code = ErrorCode.TOOL_TIMEOUT if step.kind == StepKind.TOOL else ErrorCode.ORCHESTRATION_STEP_TIMEOUT
        tool = self._tools.get(str(step.parameters.get("tool", "")))
        is_idempotent = tool is not None and tool.idempotent
        failure = failure_of(
            code, f"step {step.name!r} took more than {timeout_s or 0.0:g} s", tool_is_idempotent=is_idempotent
        )
        if self._has_called(step):
            failure = replace(failure, retryable=failure.retryable and step.kind == StepKind.TOOL)
        return _StepFailedError(failure, self._spent.get(step.name, TokenUsage()))

    def _has_called(self, step: Step) -> bool:
        """Tell whether a step has begun to call tools, before an interruption or since."""
        return self._progress.has_called(step.name) or step.name in self._called

    async def _do(self, step: Step, inputs: Mapping[str, Value]) -> _Done:
        if (custom := self._services.custom_steps.get(step.kind)) is not None:
            text = "\n\n".join(text_of(value) for value in self._values_of(step, inputs))
            made: object = await custom(text, step.parameters)
            if not isinstance(made, str):
                raise PreconditionFailed(f"steps of kind {step.kind!r} must return text, not {type(made).__name__}")
            return _Done(Value(ValueKind.TEXT, text=made))
        match StepKind(step.kind):
            case StepKind.INFER:
                return await self._infer(step, inputs)
            case StepKind.TOOL:
                return await self._call(step, value_of(step, self._request, inputs))
            case StepKind.VALIDATE:
                return await self._validate(step, value_of(step, self._request, inputs))
            case StepKind.RETRIEVE:
                return await self._retrieve(step, value_of(step, self._request, inputs))
            case StepKind.RERANK:
                return await self._rerank(step, value_of(step, self._request, inputs))

    def _values_of(self, step: Step, inputs: Mapping[str, Value]) -> list[Value]:
        """Return all that a step works on."""
        if step.input is not None or len(inputs) <= 1:
            return [value_of(step, self._request, inputs)]
        return list(inputs.values())

    async def _infer(self, step: Step, inputs: Mapping[str, Value]) -> _Done:
        """Run a whole turn on a machine of its own: tools, the step's contract, repair and retries.

        A run that was interrupted goes on after the last thing that happened to its machine.
        """
        effects = self._new_effects(step.name)
        outcome = machine.start(self._request_of(step, inputs))
        before = self._before(step)
        number, happened_before = before.run_of(step.name)
        progress = before.of_step(step.name)
        number = self._runs[step.name] = max(number, self._runs.get(step.name, 0) + 1)
        for happened in happened_before:
            outcome = machine.step(outcome.run, happened)
        self._spent[step.name] = outcome.run.usage
        try:
            while not isinstance(finish := outcome.command, Finish):
                if (discarded := outcome.discarded) is not None:
                    await self._discard(number - 1 + discarded.attempt, discarded.reason)
                with attempt_scope(number - 1 + outcome.run.attempt):
                    happened = await effects.carry_out(outcome, progress)
                progress = Progress()
                outcome = machine.step(outcome.run, happened)
                self._spent[step.name] = outcome.run.usage
                await self._recorder.record_step((), [NestedInput(step.name, number, happened)])
        finally:
            self._keep(effects.calls.records)
            if effects.calls.started_count:
                self._called.add(step.name)
            if (stopped := effects.stopped_inference()) is not None:
                self._spent[step.name] += stopped.usage
        response = finish.response
        self._model = outcome.run.model or self._model
        if response.failure is not None:
            # Its own retries are used up: what is left to try again is a service that failed.
            # A tool that ran, or may have, must not run again.
            is_safe = response.validation is None and not self._has_called(step)
            is_retryable = response.failure.retryable and is_safe
            raise _StepFailedError(replace(response.failure, retryable=is_retryable), response.usage)
        output = Value(ValueKind.TEXT, text=response.content)
        return _Done(output, response.usage, outcome.run.best, response.warnings)

    def _request_of(self, step: Step, inputs: Mapping[str, Value]) -> Request:
        request, parameters = self._request, step.parameters
        tools = tuple(parameters.get("tools", ()))
        is_final = step.name == self._final
        choice = _tool_choice(str(parameters.get("tool_choice", "auto")))
        hints = replace(
            request.hints,
            **{name: parameters[name] for name in _HINTS if name in parameters},
            tool_choice=choice if tools else ToolChoice(mode=ToolChoiceMode.NONE),
        )
        return Request(
            request_id=request.request_id,
            trace_id=request.trace_id,
            mode=Mode.STRUCTURED if step.output.schema_json else Mode.CHAT,
            messages=messages_of(step, request, inputs),
            prompt=request.prompt,
            hints=hints,
            output=step.output,
            tools=tools,
            rules=request.rules if is_final else (),
            semantic_intent=request.semantic_intent if is_final else "",
            retry=retry_of(step, request.retry),
        )

    def _before(self, step: Step) -> Progress:
        """Return what happened before an interruption, for a step's first run since; nothing for later ones."""
        return Progress() if step.name in self._runs else self._progress

    async def _run_call(self, step: Step, call: ToolCall, *, is_lost: bool = False) -> ToolCallRecord:
        effects = self._new_effects(step.name)
        try:
            return await effects.calls.run(self._request, call, self._tools, is_lost=is_lost)
        finally:
            self._keep(effects.calls.records)

    def _keep(self, records: Sequence[ToolCallRecord]) -> None:
        self.records += [record for record in records if record not in self.records]

    async def _call(self, step: Step, value: Value) -> _Done:
        arguments = arguments_of(step, value)
        if arguments is None:
            raise InvalidRequest(
                f"step {step.name!r} works on text that is no JSON object: name the `argument` that takes it",
                code=ErrorCode.TOOL_INVALID_ARGUMENTS,
            )
        tool = str(step.parameters["tool"])
        before = self._before(step).of_step(step.name)
        self._runs[step.name] = self._runs.get(step.name, 0) + 1
        lost = before.lost_call(self._tools)
        record = before.records[-1] if before.records else None
        if lost is not None:
            record = await self._run_call(step, ToolCall(lost.call_id, tool, arguments), is_lost=True)
        elif record is None or (record.is_error and tool in self._tools and self._tools[tool].idempotent):
            self._calls += 1
            record = await self._run_call(step, ToolCall(f"{step.name}-{self._calls}", tool, arguments))
        if record.failure is not None:
            raise _StepFailedError(record.failure, TokenUsage())
        return _Done(result_value(record.id, tool, record.result))

    async def _validate(self, step: Step, value: Value) -> _Done:
        request = self._request_of(replace(step, input=value), {})
        effects = self._new_effects(step.name)
        enforced = await effects.enforce(Run(request), Enforce(value.text, is_decoder_enforced=False), step.name)
        found = enforced.enforcement
        if not found.valid and step.output.strict_validation:
            failure = found.failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed")
            raise _StepFailedError(replace(failure, retryable=False), found.judge_usage)
        warnings = () if found.valid else (ResponseWarning("output_invalid", _NOT_SATISFIED.format(step.name)),)
        return _Done(replace(value, text=found.output), found.judge_usage, found, warnings)

    async def _retrieve(self, step: Step, value: Value) -> _Done:
        parameters, started_s = step.parameters, self._clock.monotonic_s()
        policy = ContextPolicy(
            retriever=f"RETRIEVER_{parameters.get('retriever', RETRIEVERS[0]).upper()}",
            collection=str(parameters["collection"]),
            max_chunks=parameters.get("max_chunks", 0),
            min_score=parameters.get("min_score"),
        )
        chunks = await self._services.context.retrieve(value.text, policy)
        found = events.ContextRetrieved(policy.collection, len(chunks), 0)
        took_s = self._clock.monotonic_s() - started_s
        await self._recorder.emit(found, duration_s=took_s, caused_by=step.name)
        return _Done(Value(ValueKind.CONTEXT, chunks=chunks))

    async def _rerank(self, step: Step, value: Value) -> _Done:
        parameters = step.parameters
        query = str(parameters.get("query") or last_user_text(self._request, ()))
        ranking = Ranking(str(parameters.get("scorer", "")), parameters.get("min_score"), parameters.get("top_k", 0))
        chunks = value.chunks or _as_chunks(value.proposals)
        ranked = await self._services.context.rerank(query, chunks, ranking)
        if value.kind is ValueKind.CONTEXT:
            return _Done(replace(value, chunks=ranked))
        by_id = {chunk.id: proposal for chunk, proposal in zip(chunks, value.proposals, strict=True)}
        return _Done(replace(value, proposals=tuple(_rescored(by_id[chunk.id], chunk) for chunk in ranked)))


def _tool_choice(name: str) -> ToolChoice:
    """Return the choice that a step's parameter names: a mode, or else a tool."""
    if name in tuple(ToolChoiceMode):
        return ToolChoice(mode=ToolChoiceMode(name))
    return ToolChoice(tool_name=name)


def _rescored(proposal: Proposal, chunk: Chunk) -> Proposal:
    return replace(proposal, score=chunk.score, score_kind=chunk.score_kind, metadata_json=chunk.metadata_json)


def _as_chunks(proposals: tuple[Proposal, ...]) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(str(index), one.content, one.source, one.score, one.score_kind, one.metadata_json)
        for index, one in enumerate(proposals)
    )
