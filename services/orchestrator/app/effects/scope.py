"""The scope that the effects of one machine share, the loop that drives a machine, and the events of an inference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Failure, PaganticError
from pagantic_common.domain.messages import ToolCall
from pagantic_common.telemetry.scope import current_scope, work_scope
from services.orchestrator.app.effects.branches import Branches
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recording.observing import StateSpans
from services.orchestrator.app.recording.recorder import Recorder, attempt_scope
from services.orchestrator.app.services import Services
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.execution.progress import CallProgress, InferenceProgress, failed_with
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand, Command
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import InferenceOutput, ToolCallRecord
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.tools.taint import Provenance
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.preparing import CheckInput
from services.orchestrator.core.turn.run import Outcome, Run
from services.orchestrator.core.turn.voting import Sample
from services.orchestrator.ports.journal import Conversations

# Carries out a run's outstanding command and returns its answer. Raises PaganticError if the machine handles the error.
Effect = Callable[[Run, Any, "RunScope"], Awaitable[Answer]]


@dataclass(slots=True)
class RunScope:
    """The scope of an execution's machine, or of a child.

    Attributes:
        effects: The effect of each command.
        tool_slots: Limits the concurrent tool calls of the execution.
        deadline: Returns the deadline of a command that starts now, which changes as callers come and go.
        path: The path of the machine; empty for the execution's own machine.
        first_attempt: The number of the machine's first attempt within its child, from 1; 0 for the execution's own
            machine.
        cause: The cause of the next event: "request", an inference, a tool call or a step.
        progress_begins: Number of the execution's inner progress entries when the machine started; 0 for an
            interrupted machine, which continues from its own entries.
        taken: The results that a replay copies from a recorded execution; None unless the execution is a replay.
        branches: The branches of the execution's work.
        may_park: Whether the machine may be parked while it waits: in the background, outside a step with a timeout.
        given_calls: The ids of the recorded calls whose results this replay has already used.
        surroundings: Returns the provenance of the texts that a child uses; None for the execution's own machine,
            which has all texts.
    """

    services: Services
    conversations: Conversations
    clock: Clock
    recorder: Recorder
    effects: Mapping[type[AnsweredCommand], Effect]
    tool_slots: asyncio.Semaphore
    branches: Branches
    may_park: bool = False
    deadline: Callable[[], Deadline] = Deadline
    path: str = ""
    first_attempt: int = 0
    cause: str = "request"
    progress_begins: int = 0
    taken: RecordedAnswers | None = None
    given_calls: set[str] = field(default_factory=set)
    surroundings: Callable[[], Provenance] | None = None
    _inference_count: int = 0

    def for_child(
        self,
        path: str,
        cause: str,
        surroundings: Callable[[], Provenance],
        first_attempt: int = 1,
        progress_begins: int = 0,
    ) -> RunScope:
        """Return the scope for the machine of a child."""
        return replace(
            self,
            deadline=Deadline,
            path=path,
            cause=cause,
            first_attempt=first_attempt,
            progress_begins=progress_begins,
            surroundings=surroundings,
            _inference_count=0,
        )

    def attempt_of(self, run: Run) -> int:
        """Return the attempt number of a run within its child, or 0 if the execution's attempt number applies."""
        if not self.path:
            return 0
        return self.first_attempt + run.attempt - 1

    @property
    def calls(self) -> CallProgress:
        """The tool calls of the outstanding command."""
        return self.recorder.progress.calls_of(self.path, self.progress_begins)

    @property
    def inference(self) -> InferenceProgress:
        """The inference progress of this machine."""
        return self.recorder.progress.inference(self.path)

    def recorded_call(self, call: ToolCall) -> ToolCallRecord | None:
        """Return the recorded result of a call in a replay, or None if the call must be made."""
        return None if self.taken is None else self.taken.find_call(call, self.path, self.given_calls)

    def next_inference(self) -> str:
        """Return a new name for an inference."""
        self._inference_count += 1
        return f"inference-{self._inference_count}"

    def correlation(self, step_name: str = "") -> CorrelationContext:
        """Return the correlation context that is sent to a service with a call."""
        record = self.recorder.record
        return CorrelationContext(
            request_id=record.request_id,
            session_id=record.session_id,
            step_name=current_scope().step_name
            or step_name,  # During a step of a plan, all work is reported under the name of the step.
            caused_by=self.cause,
        )


Record = Callable[[Outcome, Answer], Awaitable[None]]


async def drive(outcome: Outcome, scope: RunScope, record: Record, states: StateSpans) -> Outcome:
    """Carry out each command and `record` its result until the machine has finished. Return the last outcome."""
    while isinstance(command := outcome.command, AnsweredCommand):
        run, effect = outcome.run, scope.effects[type(command)]
        if scope.taken is not None:
            effect = partial(_answer_or_carry_out, effect, scope.taken)
        states.enter(run.state, run.attempt)
        with attempt_scope(scope.attempt_of(run)), work_scope(deadline=scope.deadline()):
            try:
                happened = await effect(run, command, scope)
            except PaganticError as error:
                happened = failed_with(run, scope.recorder.progress, failure_from(error), scope.path)
        outcome = machine.step(run, happened)
        await record(outcome, happened)
    return outcome


async def _answer_or_carry_out(
    effect: Effect, taken: RecordedAnswers, run: Run, command: Command, scope: RunScope
) -> Answer:
    """Return the recorded answer to a command, or carry out the command with the recorded seed.

    Further attempts of a child reuse no answers.
    """
    if scope.first_attempt <= 1 and not isinstance(command, CheckInput):
        if name := taken.step_at(scope.path, run.position):
            await scope.recorder.emit(events.StepRecorded(name), caused_by=scope.cause)
        if (answer := taken.answer_at(scope.path, run.position, command)) is not None:
            return answer
    if isinstance(command, Infer | Sample) and command.seed is None:
        command = replace(command, seed=taken.seed_at(scope.path, run.position))
    return await effect(run, command, scope)


@asynccontextmanager
async def inference_events(
    request: Request,
    command: Infer | Sample | Decide,
    scope: RunScope,
    end: Callable[[Failure | None], events.InferenceEnd],
    purpose: InferencePurpose = InferencePurpose.ANSWER,
) -> AsyncIterator[str]:
    """Emit the start and the end event of an inference around its work, even if the work fails.

    Yields the name of the inference. `end` returns the content of the end event, given the failure or None.
    """
    name = scope.next_inference()
    await scope.recorder.emit(_start_of(request, command, purpose), caused_by=scope.cause)
    started_s = scope.clock.monotonic_s()
    failure: Failure | None = None
    try:
        with work_scope(correlation=scope.correlation(name)):
            yield name
    except PaganticError as error:
        failure = failure_from(error)
        raise
    finally:
        took_s = scope.clock.monotonic_s() - started_s
        scope.recorder.set_last_step(name, failure)
        await scope.recorder.emit(end(failure), duration_s=took_s, failure=failure, caused_by=scope.cause)


def _start_of(request: Request, command: Infer | Sample | Decide, purpose: InferencePurpose) -> events.InferenceStart:
    if isinstance(command, Decide):
        return events.InferenceStart(
            len(command.messages), 0, schema_present=False, grammar_present=False, temperature=None, purpose=purpose
        )
    contract, is_constrained = request.output, bool(command.engine_text)
    return events.InferenceStart(
        message_count=len(command.messages),
        tool_defs_count=len(command.tools) if isinstance(command, Infer) else 0,
        schema_present=is_constrained and bool(contract.shown_schema_json),
        grammar_present=is_constrained and bool(contract.grammar or contract.grammar_name),
        temperature=request.hints.temperature if command.temperature is None else command.temperature,
        purpose=purpose,
    )


def end_of(output: InferenceOutput) -> events.InferenceEnd:
    """Return the content of the end event for an output."""
    return events.InferenceEnd(
        tokens_in=output.usage.prompt_tokens,
        tokens_out=output.usage.output_tokens,
        finish_reason=output.finish_reason,
        tool_call_count=len(output.tool_calls),
        model=output.model,
        seed=output.seed,
        cached_tokens=output.usage.cached_prompt_tokens,
    )
