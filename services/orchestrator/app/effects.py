"""Carries out what a run asks for, on the other services, and tells the recorder of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import rfc8785

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.errors import (
    ErrorCategory,
    ErrorCode,
    Failure,
    InvalidRequest,
    PaganticError,
    PermissionDenied,
    PreconditionFailed,
    Unavailable,
    Unsupported,
    failure_of,
)
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.messages import Message, ToolCall, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import StageOutcome
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import current_correlation, work_scope
from services.orchestrator.app.planning import planner_command
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.services import Services
from services.orchestrator.core import events
from services.orchestrator.core.plan import Plan, tools_of
from services.orchestrator.core.planning import Planner, planned, static_plan
from services.orchestrator.core.prompt import last_user_text
from services.orchestrator.core.replay import CallBegan, CallEnded, Progress, lost_call_message
from services.orchestrator.core.replicas import ballots_of
from services.orchestrator.core.request import Request, check_configuration
from services.orchestrator.core.response import CandidateOutput, FinishReason, InferenceOutput, ToolCallRecord
from services.orchestrator.core.run import (
    Enforce,
    Enforced,
    Failed,
    Infer,
    Inferred,
    Input,
    MakePlan,
    Outcome,
    Planned,
    Prepare,
    Prepared,
    Replica,
    Run,
    RunTools,
    Sample,
    Sampled,
    ToolsRan,
)
from services.orchestrator.core.voting import canonical_json, is_decided
from services.orchestrator.ports.journal import Journal

log = get_logger(__name__)

NOTHING_DONE = Progress()


class Effects:
    """The commands of one run, or of one step of a plan; `cause` is what the first of them is caused by."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        clock: Clock,
        recorder: Recorder,
        *,
        cause: str = "request",
        step: str = "",
    ) -> None:
        self._services = services
        self._journal = journal
        self._clock = clock
        self._recorder = recorder
        self._cause = cause
        self._step = step
        self._inferences = 0
        self.records: list[ToolCallRecord] = []
        self.started_calls = 0
        self.sampled_usage = TokenUsage()
        self._replicas: dict[int, Replica] = {}

    @property
    def ended_replicas(self) -> tuple[Replica, ...]:
        """The replicas of a vote that ended so far, by index."""
        return tuple(self._replicas[index] for index in sorted(self._replicas))

    async def carry_out(self, outcome: Outcome, progress: Progress = NOTHING_DONE) -> Input:  # noqa: PLR0911 - an arm for each command
        """Carry out the outstanding command and return what came of it; failures are inputs too.

        Tool calls that had ended, or may have run, before an interruption are in `progress`.
        """
        run = outcome.run
        try:
            for command in outcome.commands:
                match command:
                    case Prepare():
                        return await self._prepare(run.request, run.plan)
                    case MakePlan():
                        return await self._make_plan(run)
                    case Infer():
                        return Inferred(await self._infer(run, command))
                    case Sample():
                        return await self._sample(run, command)
                    case RunTools():
                        return await self._run_tools(run, command.calls, progress)
                    case Enforce():
                        return await self.enforce(run, command, self._cause)
                    case _:
                        continue
        except PaganticError as error:
            failure = failure_from(error)
            if run.replicas:  # the machine has them, and what they cost
                return Failed(failure)
            return Failed(failure, replicas=self.ended_replicas, usage=self.sampled_usage)
        raise AssertionError(f"no command to carry out in {run.state}")  # the machine's invariant 2

    async def _make_plan(self, run: Run) -> Planned:
        if self._services.planner is Planner.STATIC:
            return Planned(static_plan(run.request), TokenUsage())
        command, asked = await planner_command(self._services, run.request)
        output = await self._infer(replace(run, request=asked), command)
        return Planned(planned(run.request, output.content), output.usage)

    async def _prepare(self, request: Request, plan: Plan | None) -> Prepared:
        check_configuration(request)
        history = await self._journal.history(request.session_id) if request.session_id else ()
        if plan is not None:  # only a run in mode PLAN has one
            return Prepared(history=history, tools=await self._plan_tools(request, tools_of(plan)))
        engine_text, is_fully_enforced = "", False
        if request.output.decoder_constraint and not request.output.is_empty:
            compiled = await self._services.constraint.compile(request.output)
            engine_text, is_fully_enforced = compiled.engine_text, compiled.is_fully_enforced
        tools = await self._offered_tools(request) if request.offers_tools else ()
        return Prepared(
            history=history,
            context_message=await self._retrieve(request, history) if request.context else None,
            tools=tools,
            engine_text=engine_text,
            is_fully_enforced=is_fully_enforced,
        )

    async def _plan_tools(self, request: Request, names: frozenset[str]) -> tuple[ToolDefinition, ...]:
        if request.tools and (denied := sorted(names - set(request.tools))):
            raise PermissionDenied(
                f"the plan uses tool {denied[0]!r}, which is not among the request's tools", code=ErrorCode.TOOL_DENIED
            )
        listed = await self._services.tools.list_tools(sorted(names)) if names else []
        return tuple(tool.definition for tool in listed)

    async def _offered_tools(self, request: Request) -> tuple[ToolDefinition, ...]:
        choice = request.hints.tool_choice
        try:
            listed = await self._services.tools.list_tools(request.tools)
        except Unavailable as error:
            if request.tools or choice.is_enforced:
                raise
            log.warning("tools are not offered", reason=str(error))
            return ()
        tools = tuple(tool.definition for tool in listed if tool.is_available)
        if choice.is_enforced and not tools:
            raise InvalidRequest("tool_choice demands a call, but no tool is available", code=ErrorCode.CONFIG_INVALID)
        if choice.tool_name and choice.tool_name not in {tool.name for tool in tools}:
            raise InvalidRequest(
                f"tool_choice names {choice.tool_name!r}, which is not an available tool of this request",
                code=ErrorCode.TOOL_NOT_FOUND,
            )
        return tools

    async def _retrieve(self, request: Request, history: Sequence[Message]) -> Message | None:
        policy = request.context
        if policy is None:
            return None
        started_s = self._clock.monotonic_s()
        message, chunk_count, token_count = None, 0, 0
        failure: Failure | None = None
        try:
            query = last_user_text(request, history)
            built = await self._services.context.build(query, policy, request.hints.model)
            message, chunk_count, token_count = built.message, built.chunk_count, built.token_count
        except PaganticError as error:  # a chat goes on without its context; the timeline tells of it
            failure = failure_from(error)
        await self._recorder.emit(
            events.ContextRetrieved(policy.collection, chunk_count, token_count),
            layer="context",
            action="context.retrieved",
            duration_s=self._clock.monotonic_s() - started_s,
            failure=failure,
            caused_by=self._cause,
        )
        return message

    async def _infer(self, run: Run, command: Infer) -> InferenceOutput:
        if (wait_s := run.request.retry.wait_s(command.retry, random.random())) > 0:  # noqa: S311 - no secret
            await asyncio.sleep(wait_s)
        step, started_s = await self._start_inference(
            run.request, command, tool_count=len(command.tools), temperature=run.request.hints.temperature
        )
        failure: Failure | None = None
        output = InferenceOutput("", FinishReason.ERROR)
        try:
            with work_scope(correlation=self._correlation(run.request, step, self._cause)):
                async with aclosing(self._services.inference.infer(command, run.request.hints)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, InferenceOutput):
                            output = piece
                        elif command.is_streamed:
                            await self._recorder.emit(
                                events.ContentDelta(piece), layer="inference", action="content.delta", caused_by=step
                            )
        except PaganticError as error:
            failure = failure_from(error)
            raise
        finally:
            end = events.InferenceEnd(
                duration_ms=0.0,
                tokens_in=output.usage.prompt_tokens,
                tokens_out=output.usage.output_tokens,
                finish_reason=output.finish_reason,
                tool_call_count=len(output.tool_calls),
            )
            await self._end_inference(step, end, started_s, failure)
        self._cause = step
        return output

    async def _sample(self, run: Run, command: Sample) -> Sampled:
        """Draw the replicas and enforce each as it ends; leaving the stream early stops those that still decode."""
        step, started_s = await self._start_inference(
            run.request, command, tool_count=0, temperature=command.temperature
        )
        replicas = self._replicas
        finish_reason, failure = FinishReason.ERROR, None
        try:
            with work_scope(correlation=self._correlation(run.request, step, self._cause)):
                async with aclosing(self._services.inference.sample(command, run.request.hints)) as ended:
                    async for item in ended:
                        if isinstance(item, TokenUsage):
                            self.sampled_usage = item
                            continue
                        self.sampled_usage += item.output.usage
                        finish_reason = item.output.finish_reason
                        replicas[item.index] = await self._cast(run, command, item)
                        is_stopped = command.voting.early_stop and len(replicas) < command.voting.n
                        if is_stopped and _is_decided(replicas, command):
                            break
        except PaganticError as error:
            failure = failure_from(error)
            if not replicas or failure.category is ErrorCategory.CANCELLATION:
                raise
            # What has ended still counts: the others abstain.
            for index in set(range(command.voting.n)) - set(replicas):
                replicas[index] = Replica(index, failure=failure)
        finally:
            end = events.InferenceEnd(
                duration_ms=0.0,
                tokens_in=self.sampled_usage.prompt_tokens,
                tokens_out=self.sampled_usage.output_tokens,
                finish_reason=finish_reason,
                tool_call_count=0,
            )
            await self._end_inference(step, end, started_s, failure)
        return Sampled(self.ended_replicas, self.sampled_usage)

    async def _cast(self, run: Run, command: Sample, ended: CandidateOutput) -> Replica:
        output, name = ended.output, f"replica-{ended.index}"
        is_enforced = bool(command.engine_text) and command.is_fully_enforced and output.constraint_satisfied
        try:
            enforced = await self.enforce(run, Enforce(output.content, is_decoder_enforced=is_enforced), name)
        except PaganticError as error:
            if failure_from(error).category is ErrorCategory.CANCELLATION:
                raise
            replica = Replica(ended.index, failure=failure_from(error))
        else:
            replica = Replica(ended.index, enforced.enforcement)
        document = ballots_of((replica,)).get(ended.index)
        value_hash = hashlib.sha256(canonical_json(document).encode()).hexdigest() if document else ""
        cast = events.VoteCast(ended.index, value_hash, is_abstained=not replica.is_cast)
        await self._recorder.emit(cast, layer="orchestrator", action="vote.cast", caused_by=name)
        return replica

    async def _start_inference(
        self, request: Request, command: Infer | Sample, *, tool_count: int, temperature: float | None
    ) -> tuple[str, float]:
        """Tell that an inference begins; returns its name and the time."""
        contract, is_constrained = request.output, bool(command.engine_text)
        start = events.InferenceStart(
            message_count=len(command.messages),
            tool_defs_count=tool_count,
            schema_present=is_constrained and bool(contract.schema_json),
            grammar_present=is_constrained and bool(contract.grammar or contract.grammar_name),
            temperature=temperature,
        )
        self._inferences += 1
        await self._recorder.emit(start, layer="inference", action="inference.start", caused_by=self._cause)
        return f"inference-{self._inferences}", self._clock.monotonic_s()

    async def _end_inference(
        self, step: str, end: events.InferenceEnd, started_s: float, failure: Failure | None
    ) -> None:
        took_s = self._clock.monotonic_s() - started_s
        self._recorder.note_step(step, failure)
        await self._recorder.emit(
            replace(end, duration_ms=took_s * 1000),
            layer="inference",
            action="inference.end",
            duration_s=took_s,
            failure=failure,
            caused_by=self._cause,
        )

    async def _run_tools(self, run: Run, calls: Sequence[ToolCall], progress: Progress) -> ToolsRan:
        tools = {tool.name: tool for tool in run.prepared.tools}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_or_recall(run.request, call, tools, progress)) for call in calls]
        self._cause = calls[-1].id
        return ToolsRan(tuple(task.result() for task in tasks))

    async def _run_or_recall(
        self, request: Request, call: ToolCall, tools: Mapping[str, ToolDefinition], progress: Progress
    ) -> ToolCallRecord:
        if (record := progress.record_of(call.id)) is not None:
            self.records.append(record)
            return record
        is_lost = progress.has_begun(call.id) and not (call.name in tools and tools[call.name].idempotent)
        return await self.run_tool(request, call, tools, is_lost=is_lost)

    async def run_tool(
        self, request: Request, call: ToolCall, tools: Mapping[str, ToolDefinition], *, is_lost: bool = False
    ) -> ToolCallRecord:
        """Run a call and tell of it; its failure is in the record. A lost one may have run, and is not run again."""
        cause, args_hash = self._cause, hash_arguments(call.arguments_json)
        began = CallBegan(call.id, call.name, self._step)
        await self._recorder.emit(
            events.ToolStart(call.name, call.id, args_hash),
            layer="tools",
            action="tool.start",
            entries=[began],
            is_durable=True,  # before anything happens in the world
            tool_call_id=call.id,
            caused_by=cause,
        )
        started_s = self._clock.monotonic_s()
        failure: Failure | None = None
        try:
            if is_lost:
                raise PreconditionFailed(lost_call_message(call.name), code=ErrorCode.TOOL_EXECUTION_FAILED)
            if call.name not in tools:
                raise InvalidRequest(f"tool {call.name!r} was not offered", code=ErrorCode.TOOL_NOT_FOUND)
            with work_scope(correlation=self._correlation(request, "", call.id)):
                self.started_calls += 1
                record = await self._services.tools.execute(call)
        except PaganticError as error:
            failure = failure_from(error)
            code = ErrorCode.TOOL_UNAVAILABLE if isinstance(error, Unavailable) else failure.code
            took_s = self._clock.monotonic_s() - started_s
            record = ToolCallRecord(call.id, call.name, call.arguments_json, failure.message, True, code, took_s)
        took_s = self._clock.monotonic_s() - started_s
        if record.error_code is not None and failure is None:
            failure = failure_of(record.error_code, record.result)
        self.records.append(record)
        self._recorder.note_step(call.id, failure)
        await self._recorder.emit(
            events.ToolEnd(call.name, call.id, args_hash, took_s * 1000, not record.is_error, record.error_code),
            layer="tools",
            action="tool.end",
            entries=[CallEnded(record, self._step)],
            is_durable=True,  # it will not run again
            duration_s=took_s,
            failure=failure,
            tool_call_id=call.id,
            caused_by=cause,
        )
        return record

    async def enforce(self, run: Run, command: Enforce, caused_by: str) -> Enforced:
        """Run the constraint pipeline and tell of its stages."""
        enforcement = await self._services.constraint.enforce(
            command.output, run.request, is_decoder_enforced=command.is_decoder_enforced
        )
        for report in enforcement.stages:
            await self._recorder.emit(
                events.ValidationStage(report),
                layer="constraint",
                action="validation.stage",
                duration_s=report.duration_s,
                caused_by=caused_by,
            )
            if report.outcome is StageOutcome.REPAIRED:
                await self._recorder.emit(
                    events.RepairApplied(report.stage, report.reasons),
                    layer="constraint",
                    action="repair.applied",
                    caused_by=caused_by,
                )
        return Enforced(enforcement)

    def _correlation(self, request: Request, step_name: str, caused_by: str) -> CorrelationContext:
        step_name = current_correlation().step_name or step_name  # a plan's step is the step of all its work
        return CorrelationContext(
            request_id=request.request_id, session_id=request.session_id, step_name=step_name, caused_by=caused_by
        )


def _is_decided(replicas: Mapping[int, Replica], command: Sample) -> bool:
    ballots = ballots_of(tuple(replicas.values()))
    return is_decided(ballots, len(replicas) - len(ballots), command.voting)


def failure_from(error: PaganticError) -> Failure:
    """Return the failure of an error; one without a code gets the code of what it means to the orchestrator."""
    if error.code is not None:
        return error.failure
    is_config = isinstance(error, Unsupported | InvalidRequest)
    code = ErrorCode.CONFIG_INVALID if is_config else ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
    return failure_of(code, error.failure.message, details=error.failure.details)


def hash_arguments(arguments_json: str) -> str:
    """SHA-256 of the arguments as canonical JSON (RFC 8785), hex; of the text itself when it is not JSON."""
    try:
        data = rfc8785.dumps(parse_json(arguments_json or "{}"))
    except (JsonTextError, rfc8785.CanonicalizationError):
        data = arguments_json.encode()
    return hashlib.sha256(data).hexdigest()
