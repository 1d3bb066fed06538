"""Drives the machine from a request to its response, and records what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Failure
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects import Effects
from services.orchestrator.app.plan_steps import PlanSteps
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.services import Services
from services.orchestrator.app.usage import total_of
from services.orchestrator.core import events, machine
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.events import Payload
from services.orchestrator.core.plan import MAX_PARALLEL, PlanPolicy
from services.orchestrator.core.prompt import with_prepared
from services.orchestrator.core.replay import Progress, Replay
from services.orchestrator.core.request import Request
from services.orchestrator.core.run import Failed, Finish, Input, Outcome, RunPlan
from services.orchestrator.ports.journal import Journal

NO_PRICES: Mapping[str, Prices] = MappingProxyType({})


class Runner:
    """One execution, from its admission, or from where it was interrupted, to its response."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        clock: Clock,
        recorder: Recorder,
        bounds: PlanPolicy,
        *,
        interrupted: Replay | None = None,
        prices: Mapping[str, Prices] = NO_PRICES,
        deadline: Callable[[], Deadline] = Deadline,
    ) -> None:
        self._services = services
        self._clock = clock
        self._recorder = recorder
        self._bounds = bounds
        self._prices = prices
        self._deadline = deadline
        tool_slots = asyncio.Semaphore(MAX_PARALLEL)  # shared by all steps
        self._new_effects = partial(Effects, services, journal, clock, recorder, tool_slots=tool_slots)
        self._effects = self._new_effects()
        self._steps: PlanSteps | None = None
        self._interrupted = interrupted
        self._progress = interrupted.progress if interrupted else Progress()
        self._run = interrupted.outcome.run if interrupted else None

    async def run(self, request: Request) -> None:
        """Drive the machine to its end. Cancelling the task must be followed by `end`.

        What the outstanding command of an interrupted machine had done is not done again.
        """
        outcome = self._interrupted.outcome if self._interrupted else machine.start(request, self._bounds)
        if self._recorder.has_no_events and await self._record(outcome):
            return
        if self._interrupted is not None:
            # Durable: an execution that ends its orchestrator each time must not look as if it were taken up once.
            resumed = events.Resumed(len(self._progress.steps))
            await self._recorder.emit(resumed, is_durable=True)
        progress = self._progress
        happened = await self._carry_out(outcome, progress)
        outcome = machine.step(outcome.run, happened)
        self._progress = Progress()
        while not await self._record(outcome, happened):
            happened = await self._carry_out(outcome, Progress())
            outcome = machine.step(outcome.run, happened)

    async def _carry_out(self, outcome: Outcome, progress: Progress) -> Input:
        with work_scope(deadline=self._deadline()):
            return await self._carry_out_in_time(outcome, progress)

    async def _carry_out_in_time(self, outcome: Outcome, progress: Progress) -> Input:
        run = outcome.run
        if not isinstance(outcome.command, RunPlan):
            return await self._effects.carry_out(outcome, progress)
        self._steps = PlanSteps(
            with_prepared(run.request, run.prepared),
            outcome.command.plan,
            run.prepared.tools,
            services=self._services,
            clock=self._clock,
            recorder=self._recorder,
            new_effects=lambda step: self._new_effects(cause=step, step=step),
            progress=progress,
        )
        return await self._steps.run()

    async def end(self, request: Request, failure: Failure) -> None:
        """End a run from outside: its caller is gone, its time is up, or the program is wrong.

        A run whose outcome is decided already keeps it.
        """
        if self._recorder.is_finishing:
            await self._recorder.settle()
            return
        outcome = self._interrupted.outcome if self._interrupted else machine.start(request, self._bounds)
        if self._recorder.has_no_events and await self._record(outcome):
            return
        run = self._run or outcome.run
        known = [record.id for record in run.records]
        ran = self._effects.calls.records if self._steps is None else self._steps.records
        records = list(ran or self._progress.records)
        records = [record for record in records if record.id not in known]
        before = [step.result for step in self._progress.steps]
        results = () if run.results else tuple(self._steps.results if self._steps is not None else before)
        usage = TokenUsage() if run.replicas else self._effects.sampled_usage
        if self._steps is not None:
            usage += self._steps.unended_usage
        stopped = self._effects.stopped_inference()
        ended = Failed(failure, tuple(records), results, self._effects.ended_replicas, usage, stopped)
        await self._record(machine.step(run, ended), ended)

    async def _record(self, outcome: Outcome, happened: Input | None = None) -> bool:
        """Record what the machine told, and the input that it took; returns whether it was the last."""
        self._run = outcome.run
        entries = () if happened is None else (happened,)
        told: list[Payload] = list(outcome.transitions)
        command, discarded = outcome.command, outcome.discarded
        if isinstance(command, Finish):
            run = outcome.run
            used = total_of(run.request, command.response.usage, run.model, self._prices)
            await self._recorder.finish(
                outcome.transitions, command.response, turn=command.turn, entries=entries, used=used
            )
            return True
        if discarded is not None:
            told.append(events.AttemptDiscarded(discarded.attempt, discarded.reason))
        await self._recorder.record_step(told, entries)
        return False
