"""Drives the machine of one execution, and records what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Failure
from services.orchestrator.app.effects.driving import drive
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.table import EFFECTS
from services.orchestrator.app.recording.recorder import Recorder
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.usage import total_of
from services.orchestrator.core.execution import events, machine
from services.orchestrator.core.execution.commands import Finish
from services.orchestrator.core.execution.events import Payload
from services.orchestrator.core.execution.inputs import Input
from services.orchestrator.core.execution.progress import failed_with
from services.orchestrator.core.execution.replay import Replay
from services.orchestrator.core.execution.run import Outcome
from services.orchestrator.core.model.plan import MAX_PARALLEL


class Driver:
    """The machine of one execution, from where it stands to its end.

    Args:
        deadline: Gives the deadline of a command that begins now.
    """

    def __init__(
        self, environment: Environment, recorder: Recorder, begun: Replay, deadline: Callable[[], Deadline]
    ) -> None:
        self._environment = environment
        self._recorder = recorder
        recorder.progress = begun.progress
        self._outcome = begun.outcome
        self._is_resumed = begun.is_resumed
        self._deadline = deadline
        self._on_decided: Callable[[], None] = lambda: None

    async def drive(self, on_decided: Callable[[], None]) -> None:
        """Take the session's turn and run to the end; `on_decided` is called before the outcome is stored."""
        self._on_decided = on_decided
        async with self._environment.turns.turn(self._outcome.run.request):
            await self._drive()

    async def _drive(self) -> None:
        outcome = self._outcome
        if self._recorder.has_no_events:
            await self._record(outcome)
        if isinstance(outcome.command, Finish):
            return
        if self._is_resumed:
            # Durable: an execution that ends its orchestrator each time must not look as if it were resumed once.
            resumed = events.Resumed(len(self._recorder.progress.steps))
            await self._recorder.emit(resumed, is_durable=True)
        await drive(outcome, self._scope(), self._record)

    def _scope(self) -> RunScope:
        environment = self._environment
        return RunScope(
            services=environment.services,
            conversations=environment.journal,
            clock=environment.clock,
            recorder=self._recorder,
            effects=EFFECTS,
            tool_slots=asyncio.Semaphore(MAX_PARALLEL),
            deadline=self._deadline,
        )

    async def end(self, failure: Failure) -> None:
        """End the machine from outside. An outcome that is decided already stays."""
        if self._recorder.is_finishing:
            await self._recorder.settle()
            return
        if self._recorder.has_no_events:
            await self._record(self._outcome)
            if isinstance(self._outcome.command, Finish):
                return
        failed = failed_with(self._outcome.run, self._recorder.progress, failure)
        await self._record(machine.step(self._outcome.run, failed), failed)

    async def _record(self, outcome: Outcome, happened: Input | None = None) -> None:
        """Record what the machine told, and the input that it took; the last time with the response."""
        self._outcome = outcome
        entries = [happened] if happened is not None else []
        command = outcome.command
        if isinstance(command, Finish):
            self._on_decided()
            run = outcome.run
            used = total_of(run.request, command.response.usage, run.model, self._environment.limits.prices)
            await self._recorder.finish(
                outcome.transitions, command.response, turn=command.turn, entries=entries, used=used
            )
            return
        told: list[Payload] = list(outcome.transitions)
        discarded = outcome.discarded
        if discarded is not None:
            told.append(events.AttemptDiscarded(discarded.attempt, discarded.reason))
        await self._recorder.record_step(told, entries)
