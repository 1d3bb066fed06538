"""Drives the machine from a request to its response, and records what it tells."""

from __future__ import annotations

import asyncio
from functools import partial

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Failure
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.app.effects import Effects
from services.orchestrator.app.plan_steps import PlanSteps
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.services import Services
from services.orchestrator.core import events, machine
from services.orchestrator.core.plan import PlanPolicy
from services.orchestrator.core.prompt import with_history
from services.orchestrator.core.request import Request
from services.orchestrator.core.run import (
    DiscardAttempt,
    Failed,
    Finish,
    Input,
    Outcome,
    Run,
    RunPlan,
)
from services.orchestrator.ports import Journal


class Runner:
    """One execution, from its admission to its response."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        clock: Clock,
        recorder: Recorder,
        bounds: PlanPolicy,
    ) -> None:
        self._services = services
        self._clock = clock
        self._recorder = recorder
        self._bounds = bounds
        self._new_effects = partial(Effects, services, journal, clock, recorder)
        self._effects = self._new_effects()
        self._steps: PlanSteps | None = None
        self._run: Run | None = None
        self._recording: asyncio.Future[bool] | None = None

    async def run(self, request: Request) -> None:
        """Drive the machine to its end. Cancelling the task must be followed by `end`."""
        outcome = machine.start(request, self._bounds)
        while not await self._record(outcome):
            outcome = machine.step(outcome.run, await self._carry_out(outcome))

    async def _carry_out(self, outcome: Outcome) -> Input:
        for command in outcome.commands:
            if isinstance(command, RunPlan):
                self._steps = PlanSteps(
                    with_history(outcome.run.request, outcome.run.prepared.history),
                    command.plan,
                    services=self._services,
                    clock=self._clock,
                    recorder=self._recorder,
                    new_effects=lambda cause: self._new_effects(cause=cause),
                )
                return await self._steps.run()
        return await self._effects.carry_out(outcome)

    async def end(self, request: Request, failure: Failure) -> None:
        """End a run from outside: its caller is gone, its time is up, or the program is wrong.

        A run whose outcome is decided already keeps it.
        """
        if self._recording is not None:
            await asyncio.wait([self._recording])
        if self._recorder.is_finishing:
            return
        if self._run is None:
            await self._record(machine.start(request, self._bounds))
        run = self._run or machine.start(request, self._bounds).run
        known = {record.id for record in run.records}
        source = self._steps or self._effects
        records = tuple(record for record in source.records if record.id not in known)
        results = tuple(self._steps.results) if self._steps is not None and not run.results else ()
        usage = TokenUsage() if run.replicas else self._effects.sampled_usage
        ended = Failed(failure, records, results, self._effects.ended_replicas, usage)
        await self._record(machine.step(run, ended))

    async def _record(self, outcome: Outcome) -> bool:
        """Record what a step told, all of it even when cancelled meanwhile; returns whether it was the last."""
        self._recording = asyncio.ensure_future(self._record_all(outcome))
        return await asyncio.shield(self._recording)

    async def _record_all(self, outcome: Outcome) -> bool:
        self._run = outcome.run
        finish = next((command for command in outcome.commands if isinstance(command, Finish)), None)
        moves = outcome.transitions if finish is None else outcome.transitions[:-1]
        for transition in moves:
            await self._recorder.emit(transition, layer="orchestrator", action="lifecycle.transition")
        if finish is not None:
            await self._recorder.finish(outcome.transitions[-1], finish.response, finish.turn)
            return True
        for command in outcome.commands:
            if isinstance(command, DiscardAttempt):
                discarded = events.AttemptDiscarded(command.attempt, command.reason)
                await self._recorder.emit(discarded, layer="orchestrator", action="attempt.discarded")
        return False
