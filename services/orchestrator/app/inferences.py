"""The inferences of one run, each told when it begins and when it ends."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.errors import Failure, PaganticError, Unavailable
from pagantic_common.telemetry.scope import current_scope, work_scope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.core import events
from services.orchestrator.core.request import Hints, Request
from services.orchestrator.core.response import FinishReason, InferenceOutput
from services.orchestrator.core.run import Infer, Sample
from services.orchestrator.ports.services import InferencePort


class Inferences:
    """What asks the model for one run, or for one step of a plan.

    Attributes:
        cause: What the next effect of the run is caused by; each inference that ends is the cause of what follows.
    """

    def __init__(self, inference: InferencePort, clock: Clock, recorder: Recorder, cause: str) -> None:
        self._inference = inference
        self._clock = clock
        self._recorder = recorder
        self._count = 0
        self.cause = cause

    async def infer(self, request: Request, command: Infer, hints: Hints) -> InferenceOutput:
        """Ask the model, under these hints, and stream its text where the command says so."""
        step, started_s = await self.start(
            request, command, tool_count=len(command.tools), temperature=hints.temperature
        )
        failure: Failure | None = None
        output = InferenceOutput("", FinishReason.ERROR)
        try:
            with work_scope(correlation=self.correlation(request, step, self.cause)):
                output = await self._stream(command, hints, step)
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
            await self.end(step, end, started_s, failure)
        self.cause = step
        return output

    async def _stream(self, command: Infer, hints: Hints, step: str) -> InferenceOutput:
        """Stream an answer; one whose service is lost amid its text begins again, once, and the event says so."""
        output = InferenceOutput("", FinishReason.ERROR)
        is_again = False
        while True:
            is_told = False
            try:
                async with aclosing(self._inference.infer(command, hints)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, InferenceOutput):
                            output = piece
                        elif command.is_streamed:
                            is_told = True
                            await self._recorder.emit(
                                events.ContentDelta(piece), layer="inference", action="content.delta", caused_by=step
                            )
            except Unavailable as error:
                if error.code is not None or not is_told or is_again:
                    raise
                is_again = True
                discarded = events.AttemptDiscarded(self._recorder.record.attempt, str(error))
                await self._recorder.emit(discarded, layer="orchestrator", action="attempt.discarded", caused_by=step)
            else:
                return output

    async def start(
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
        self._count += 1
        await self._recorder.emit(start, layer="inference", action="inference.start", caused_by=self.cause)
        return f"inference-{self._count}", self._clock.monotonic_s()

    async def end(self, step: str, end: events.InferenceEnd, started_s: float, failure: Failure | None) -> None:
        """Tell that an inference ended; its duration is filled in."""
        took_s = self._clock.monotonic_s() - started_s
        self._recorder.note_step(step, failure)
        await self._recorder.emit(
            replace(end, duration_ms=took_s * 1000),
            layer="inference",
            action="inference.end",
            duration_s=took_s,
            failure=failure,
            caused_by=self.cause,
        )

    def correlation(self, request: Request, step_name: str, caused_by: str) -> CorrelationContext:
        """Return what a service that is called for this run is told of it."""
        step_name = current_scope().step_name or step_name  # a plan's step is the step of all its work
        return CorrelationContext(
            request_id=request.request_id, session_id=request.session_id, step_name=step_name, caused_by=caused_by
        )
