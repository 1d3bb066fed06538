"""Carries out what a run asks for, on the other services, and tells the recorder of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import (
    ErrorCategory,
    PaganticError,
    Unavailable,
)
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import StageOutcome
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.inferences import Inferences
from services.orchestrator.app.planning import plan_of, planner_command
from services.orchestrator.app.preparation import Preparation
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.services import Services
from services.orchestrator.app.tool_calls import ToolCalls
from services.orchestrator.core import events
from services.orchestrator.core.planning import Planner, made_at, static_plan
from services.orchestrator.core.replay import Progress
from services.orchestrator.core.replicas import ballots_of
from services.orchestrator.core.response import CandidateOutput, FinishReason, InferenceOutput
from services.orchestrator.core.run import (
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
    Prepare,
    Replica,
    Run,
    RunPlan,
    RunTools,
    Sample,
    Sampled,
    ToolsRan,
)
from services.orchestrator.core.truncation import is_cut, truncation_of
from services.orchestrator.core.voting import canonical_json, is_decided
from services.orchestrator.ports.journal import Journal

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
        tool_slots: asyncio.Semaphore,
        cause: str = "request",
        step: str = "",
    ) -> None:
        self._services = services
        self._clock = clock
        self._recorder = recorder
        self._inferences = Inferences(services.inference, clock, recorder, cause)
        self._preparation = Preparation(services, journal, clock, recorder, self._inferences)
        self.calls = ToolCalls(services.tools, clock, recorder, self._inferences, step=step, slots=tool_slots)
        self.sampled_usage = TokenUsage()
        self._replicas: dict[int, Replica] = {}
        self._last_drawn = InferenceOutput("", FinishReason.ERROR)

    @property
    def ended_replicas(self) -> tuple[Replica, ...]:
        """The replicas of a vote that ended so far, by index."""
        return tuple(self._replicas[index] for index in sorted(self._replicas))

    def stopped_inference(self) -> InferenceOutput | None:
        """Return what an inference had given when it was stopped or lost; None when none was."""
        return self._inferences.stopped()

    async def carry_out(  # noqa: PLR0911 - an arm for each command
        self, outcome: Outcome, progress: Progress = NOTHING_DONE
    ) -> Input:
        """Carry out the outstanding command and return what came of it; failures are inputs too.

        Tool calls that had ended, or may have run, before an interruption are in `progress`.
        """
        run, command = outcome.run, outcome.command
        try:
            match command:
                case Prepare():
                    return await self._preparation.prepare(run.request, run.plan)
                case MakePlan():
                    return await self._make_plan(run)
                case Infer():
                    return Inferred(await self._infer(run, command))
                case Sample():
                    return await self._sample(run, command)
                case RunTools():
                    tools = run.prepared.tools
                    return ToolsRan(await self.calls.run_all(run.request, command.calls, tools, progress))
                case Enforce():
                    return await self.enforce(run, command, self._inferences.cause)
                case RunPlan() | Finish():
                    raise AssertionError(f"{type(command).__name__} is not carried out here")
        except PaganticError as error:
            failure = failure_from(error)
            if run.replicas:  # the machine has them, and what they cost
                return Failed(failure)
            stopped = self.stopped_inference()
            return Failed(failure, replicas=self.ended_replicas, usage=self.sampled_usage, output=stopped)

    async def _make_plan(self, run: Run) -> Planned:
        if self._services.planner is Planner.STATIC:
            return Planned(made_at(static_plan(run.request), self._clock.now()), TokenUsage())
        command, asked = await planner_command(self._services, run.request, run.bounds)
        output = await self._inferences.infer(asked, command, asked.hints, events.InferencePurpose.PLAN)
        try:
            plan = plan_of(run.request, asked, output)
        except PaganticError:
            self._inferences.spent += output.usage
            raise
        return Planned(made_at(plan, self._clock.now()), output.usage, output.model)

    async def _infer(self, run: Run, command: Infer) -> InferenceOutput:
        if (wait_s := run.request.retry.wait_s(command.retry, random.random())) > 0:  # noqa: S311 - no secret
            await asyncio.sleep(wait_s)
        return await self._inferences.infer(run.request, command, run.request.hints)

    async def _sample(self, run: Run, command: Sample) -> Sampled:
        """Draw the replicas and enforce each as it ends; leaving the stream early stops those that still decode."""
        step, started_s = await self._inferences.start(
            run.request, command, tool_count=0, temperature=command.temperature
        )
        replicas, failure = self._replicas, None
        try:
            with work_scope(correlation=self._inferences.correlation(run.request, step, self._inferences.cause)):
                await self._collect_votes(run, command)
        except PaganticError as error:
            failure = failure_from(error)
            if not replicas or failure.category is ErrorCategory.CANCELLATION:
                raise
            # What has ended still counts: the others abstain.
            for index in set(range(command.voting.n)) - set(replicas):
                replicas[index] = Replica(index, failure=failure)
        finally:
            last = self._last_drawn
            end = events.InferenceEnd(
                tokens_in=self.sampled_usage.prompt_tokens,
                tokens_out=self.sampled_usage.output_tokens,
                finish_reason=last.finish_reason,
                tool_call_count=0,
                model=last.model,
                seed=last.seed,
            )
            await self._inferences.end(step, end, started_s, failure)
        return Sampled(self.ended_replicas, self.sampled_usage, last.seed, last.model)

    async def _collect_votes(self, run: Run, command: Sample) -> None:
        """Cast the vote of each candidate as it ends, until all have ended or the vote is decided early."""
        async with aclosing(self._draws(run, command)) as ended:
            async for item in ended:
                self._last_drawn = item.output
                self._replicas[item.index] = await self._cast(run, command, item)
                may_stop = command.voting.early_stop and len(self._replicas) < command.voting.n
                if may_stop and _is_decided(self._replicas, command):
                    return

    async def _draws(self, run: Run, command: Sample) -> AsyncGenerator[CandidateOutput, None]:
        """Give each candidate as it ends, and count what they cost; a vote lost before its first one begins again."""
        lost = TokenUsage()
        for is_last in (False, True):
            self.sampled_usage = lost
            try:
                async with aclosing(self._counted_draws(run, command, lost)) as items:
                    async for item in items:
                        yield item
            except Unavailable as error:
                has_begun = self.sampled_usage != lost
                if is_last or self._replicas or error.code is not None or not has_begun:
                    raise
                lost = self.sampled_usage
            else:
                return

    async def _counted_draws(
        self, run: Run, command: Sample, lost: TokenUsage
    ) -> AsyncGenerator[CandidateOutput, None]:
        async with aclosing(self._services.inference.sample(command, run.request.hints)) as items:
            async for item in items:
                if isinstance(item, TokenUsage):
                    self.sampled_usage = lost + item
                else:
                    self.sampled_usage += item.output.usage
                    yield item

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
            is_short = is_cut(run.request, output, enforced.enforcement)
            cut = truncation_of(run.request, output) if is_short else None
            replica = Replica(ended.index, enforced.enforcement, cut)
        document = ballots_of((replica,)).get(ended.index)
        value_hash = hashlib.sha256(canonical_json(document).encode()).hexdigest() if document else ""
        cast = events.VoteCast(ended.index, value_hash, is_abstained=not replica.is_valid_vote)
        await self._recorder.emit(cast, caused_by=name)
        return replica

    async def enforce(self, run: Run, command: Enforce, caused_by: str) -> Enforced:
        """Run the constraint pipeline and tell of its stages."""
        enforcement = await self._services.constraint.enforce(
            command.output, run.request, is_decoder_enforced=command.is_decoder_enforced
        )
        if enforcement.judge_usage != TokenUsage():
            await self._inferences.record_judgement(run.request, enforcement, caused_by)
        for report in enforcement.stages:
            await self._recorder.emit(
                events.ValidationStage(report),
                duration_s=report.duration_s,
                caused_by=caused_by,
            )
            if report.outcome is StageOutcome.REPAIRED:
                await self._recorder.emit(
                    events.RepairApplied(report.stage, report.reasons),
                    caused_by=caused_by,
                )
        return Enforced(enforcement)


def _is_decided(replicas: Mapping[int, Replica], command: Sample) -> bool:
    ballots = ballots_of(tuple(replicas.values()))
    return is_decided(ballots, len(replicas) - len(ballots), command.voting)
