"""The inferences of one run, each told when it begins and when it ends."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.errors import ErrorCode, Failure, PaganticError, Unavailable
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, Stage
from pagantic_common.telemetry.scope import current_scope, work_scope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.core import events
from services.orchestrator.core.request import Hints, Request
from services.orchestrator.core.response import FinishReason, InferenceDelta, InferenceOutput
from services.orchestrator.core.run import Infer, Sample
from services.orchestrator.ports.services import InferencePort

MAX_RESTARTS = 1  # for each inference


class Inferences:
    """What asks the model for one run, or for one step of a plan.

    Attributes:
        cause: What the next effect of the run is caused by; each inference that ends is the cause of what follows.
        partial: What the inference at hand has given so far; None when none runs.
        spent: What inferences cost that were lost and made again.
    """

    def __init__(self, inference: InferencePort, clock: Clock, recorder: Recorder, cause: str) -> None:
        self._inference = inference
        self._clock = clock
        self._recorder = recorder
        self._count = 0
        self.cause = cause
        self.partial: InferenceOutput | None = None
        self.spent = TokenUsage()

    async def infer(
        self,
        request: Request,
        command: Infer,
        hints: Hints,
        purpose: events.InferencePurpose = events.InferencePurpose.ANSWER,
    ) -> InferenceOutput:
        """Ask the model, under these hints, and stream its text where the command says so.

        An inference that is lost on the way is made again, for it changes nothing; an event discards what it has said.
        """
        for _ in range(MAX_RESTARTS):
            try:
                return self._with_spent(await self._infer(request, command, hints, purpose))
            except PaganticError as error:
                if not self._may_restart(error):
                    raise
                lost = self._take_partial()
                self.spent += lost.usage
                if lost.content or lost.reasoning:
                    discarded = events.AttemptDiscarded(self._recorder.attempt, str(error))
                    await self._recorder.emit(discarded, caused_by=self.cause)
        return self._with_spent(await self._infer(request, command, hints, purpose))

    def _with_spent(self, output: InferenceOutput) -> InferenceOutput:
        """Return an output with what inferences cost that were lost before it."""
        spent, self.spent = self.spent, TokenUsage()
        return replace(output, usage=output.usage + spent)

    def _may_restart(self, error: PaganticError) -> bool:
        """Tell whether an inference that had begun was lost; one that has said something, only with its service."""
        partial = self.partial
        if partial is None:
            return False
        is_lost = isinstance(error, Unavailable) and error.code is None
        is_silent = not partial.content and not partial.reasoning
        has_failed = isinstance(error, Unavailable) or error.code is ErrorCode.INFERENCE_ENGINE_ERROR
        return is_lost or (is_silent and has_failed)

    async def _infer(
        self, request: Request, command: Infer, hints: Hints, purpose: events.InferencePurpose
    ) -> InferenceOutput:
        temperature = hints.temperature if command.temperature is None else command.temperature
        step, started_s = await self.start(
            request, command, tool_count=len(command.tools), temperature=temperature, purpose=purpose
        )
        if self.partial is not None:  # the inference before was given up
            self.spent += self._take_partial().usage
        failure: Failure | None = None
        output = InferenceOutput("", FinishReason.ERROR)
        try:
            with work_scope(correlation=self.correlation(request, step, self.cause)):
                output = await self._collect(command, hints, step)
        except PaganticError as error:
            failure = failure_from(error)
            raise
        finally:
            ended = output if self.partial is None else self.partial
            if failure is None and ended.finish_reason is FinishReason.ERROR:
                ended = replace(ended, finish_reason=FinishReason.CANCELLED)
            await self.end(step, _end_of(ended), started_s, failure)
        self.cause = step
        return output

    async def _collect(self, command: Infer, hints: Hints, step: str) -> InferenceOutput:
        """Take what an inference says, and return its whole output."""
        output = InferenceOutput("", FinishReason.ERROR)
        async with aclosing(self._inference.infer(command, hints)) as pieces:
            async for piece in pieces:
                if isinstance(piece, InferenceOutput):
                    output, self.partial = piece, None
                else:
                    await self._take(piece, command, step)
        return output

    async def _take(self, delta: InferenceDelta, command: Infer, step: str) -> None:
        """Keep what an inference has said, in case that it is stopped, and stream it."""
        said = self.partial or InferenceOutput("", FinishReason.ERROR, model=delta.model, seed=delta.seed)
        if not command.is_streamed:
            self.partial = replace(said, usage=delta.usage)
            return
        self.partial = replace(
            said, content=said.content + delta.content, reasoning=said.reasoning + delta.reasoning, usage=delta.usage
        )
        if delta.reasoning:
            thought = events.ReasoningDelta(delta.reasoning)
            await self._recorder.emit(thought, caused_by=step)
        if delta.content:
            text = events.ContentDelta(delta.content)
            await self._recorder.emit(text, caused_by=step)

    def stopped(self) -> InferenceOutput | None:
        """Return what the inference that was stopped had given, with what lost ones cost; None when there was none."""
        if self.partial is None and self.spent == TokenUsage():
            return None
        return self._with_spent(self._take_partial())

    def _take_partial(self) -> InferenceOutput:
        partial = self.partial or InferenceOutput("", FinishReason.ERROR)
        self.partial = None
        return partial

    async def start(
        self,
        request: Request,
        command: Infer | Sample,
        *,
        tool_count: int,
        temperature: float | None,
        purpose: events.InferencePurpose = events.InferencePurpose.ANSWER,
    ) -> tuple[str, float]:
        """Tell that an inference begins; returns its name and the time."""
        contract, is_constrained = request.output, bool(command.engine_text)
        start = events.InferenceStart(
            message_count=len(command.messages),
            tool_defs_count=tool_count,
            schema_present=is_constrained and bool(contract.schema_json),
            grammar_present=is_constrained and bool(contract.grammar or contract.grammar_name),
            temperature=temperature,
            purpose=purpose,
        )
        self._count += 1
        await self._recorder.emit(start, caused_by=self.cause)
        return f"inference-{self._count}", self._clock.monotonic_s()

    async def end(self, step: str, end: events.InferenceEnd, started_s: float, failure: Failure | None) -> None:
        """Tell that an inference ended."""
        took_s = self._clock.monotonic_s() - started_s
        self._recorder.set_last_step(step, failure)
        await self._recorder.emit(
            end,
            duration_s=took_s,
            failure=failure,
            caused_by=self.cause,
        )

    async def record_judgement(self, request: Request, enforcement: Enforcement, caused_by: str) -> None:
        """Record the inference that judged an output."""
        usage = enforcement.judge_usage
        took_s = sum(stage.duration_s for stage in enforcement.stages if stage.stage is Stage.SEMANTIC)
        start = events.InferenceStart(
            message_count=0,
            tool_defs_count=0,
            schema_present=True,
            grammar_present=False,
            temperature=0.0,
            purpose=events.InferencePurpose.JUDGE,
        )
        end = _end_of(InferenceOutput("", FinishReason.STOP, usage=usage, model=request.hints.model))
        await self._recorder.emit(start, caused_by=caused_by)
        await self._recorder.emit(end, duration_s=took_s, caused_by=caused_by)

    def correlation(self, request: Request, step_name: str, caused_by: str) -> CorrelationContext:
        """Return what a service that is called for this run is told of it."""
        step_name = current_scope().step_name or step_name  # a plan's step is the step of all its work
        return CorrelationContext(
            request_id=request.request_id, session_id=request.session_id, step_name=step_name, caused_by=caused_by
        )


def _end_of(output: InferenceOutput) -> events.InferenceEnd:
    return events.InferenceEnd(
        tokens_in=output.usage.prompt_tokens,
        tokens_out=output.usage.output_tokens,
        finish_reason=output.finish_reason,
        tool_call_count=len(output.tool_calls),
        model=output.model,
        seed=output.seed,
    )
