"""Drives the machine of one execution and records its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Failure
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.table import EFFECTS
from services.orchestrator.app.recording.recorder import Recorder
from services.orchestrator.app.recording.usage import total_of
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.response_size import fit_response
from services.orchestrator.app.running.time_limits import TimeLimits
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import Payload
from services.orchestrator.core.execution.progress import failed_with
from services.orchestrator.core.execution.replay import Replay
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.plan import MAX_PARALLEL_CALLS
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.ending import Finish
from services.orchestrator.core.turn.run import Outcome


class Driver:
    """Drives the machine of one execution from its current state to its end.

    Args:
        begun: The state from which the execution starts or continues.
        limits: The time limits.
        deadline: Returns the deadline of a command that starts now.
        taken: The results that a replay copies from a recorded execution.
        on_decided: Called once the outcome is known, before it is stored.
    """

    def __init__(
        self,
        environment: Environment,
        recorder: Recorder,
        begun: Replay,
        limits: TimeLimits,
        *,
        taken: RecordedAnswers | None,
        deadline: Callable[[], Deadline],
        on_decided: Callable[[], None],
    ) -> None:
        self.limits = limits
        self._environment = environment
        self._recorder = recorder
        recorder.progress = begun.progress
        self._outcome = begun.outcome
        self._is_resumed = begun.is_resumed
        self._taken = taken
        self._deadline = deadline
        self._on_decided = on_decided

    @property
    def request(self) -> Request:
        """The admitted request with its variant."""
        return self._outcome.run.request

    @property
    def trace_id(self) -> str:
        """The trace of the execution's calls, or an empty string for the trace of the call that started it."""
        if self._is_resumed:
            return self._recorder.record.trace_id
        return self.request.trace_id

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of the session, and hold it during the work inside."""
        return self._environment.turns.turn(self.request, is_resumed=self._is_resumed)

    async def begin(self) -> Outcome:
        """Record that the execution starts or is resumed, and return its current outcome."""
        outcome = self._outcome
        if self._recorder.has_no_events or isinstance(outcome.command, Finish):
            await self.record(outcome)
        if self._is_resumed and not isinstance(outcome.command, Finish):
            # Durable, so that an execution that keeps crashing its orchestrator does not seem to be resumed only once.
            resumed = events.Resumed(len(self._recorder.progress.steps))
            await self._recorder.emit(resumed, is_durable=True)
        return outcome

    def scope(self) -> RunScope:
        """Return the scope for the effects of the execution."""
        environment = self._environment
        return RunScope(
            services=environment.services,
            conversations=environment.journal,
            clock=environment.clock,
            recorder=self._recorder,
            effects=EFFECTS,
            tool_slots=asyncio.Semaphore(MAX_PARALLEL_CALLS),
            deadline=self._deadline,
            taken=self._taken,
        )

    async def end(self, failure: Failure) -> None:
        """End the machine with a failure from outside. A decided outcome is kept."""
        if self._recorder.is_finishing:
            await self._recorder.settle()
            return
        if self._recorder.has_no_events or isinstance(self._outcome.command, Finish):
            await self.record(self._outcome)
        if isinstance(self._outcome.command, Finish):
            return
        failed = failed_with(self._outcome.run, self._recorder.progress, failure)
        await self.record(machine.step(self._outcome.run, failed), failed)

    async def record(self, outcome: Outcome, happened: Answer | None = None) -> None:
        """Record the machine's events and the answer that it received, and at the end also the response."""
        if happened is not None:
            max_bytes = self._environment.limits.max_response_bytes
            outcome, happened = fit_response(self._outcome.run, happened, outcome, max_bytes)
        self._outcome = outcome
        entries: list[Answer] = []
        if happened is not None:
            entries.append(happened)
        command = outcome.command
        if isinstance(command, Finish):
            self._on_decided()
            run = outcome.run
            used = total_of(run.request, command.response.usage, run.model, self._environment.limits.prices)
            await self._recorder.finish(
                outcome.transitions, command.response, turn=command.turn, entries=entries, used=used
            )
            return
        payloads: list[Payload] = list(outcome.transitions)
        variant = outcome.run.request.variant
        if variant is not None and self._recorder.has_no_events:
            payloads.append(events.VariantAssigned(variant))
        discarded = outcome.discarded
        if discarded is not None:
            payloads.append(events.AttemptDiscarded(discarded.attempt, discarded.reason))
        await self._recorder.record_step(payloads, entries)
