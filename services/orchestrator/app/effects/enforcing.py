"""Runs the constraint pipeline on an output and emits events for its stages."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, Stage, StageOutcome
from services.orchestrator.app.effects.scope import RunScope, end_of
from services.orchestrator.app.services import Validate
from services.orchestrator.core.execution import events
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.turn.answering import Enforce, Enforced
from services.orchestrator.core.turn.run import Run


async def enforce(run: Run, command: Enforce, scope: RunScope) -> Enforced:
    """Run the constraint pipeline that the request declares on the command's output."""
    sources = run.prepared.cited_sources
    return Enforced(await enforced(run.request, command, scope, scope.cause, sources))


async def enforced(
    request: Request, command: Enforce, scope: RunScope, caused_by: str, sources: Sequence[str] = ()
) -> Enforcement:
    """Run the constraint pipeline on the output of `caused_by`, which may quote `sources`."""
    validate = Validate(command.output, request, command.is_decoder_enforced, sources)
    enforcement = await scope.services.do(validate)
    if enforcement.judge_usage != TokenUsage():
        await _tell_judgement(request, enforcement, scope, caused_by)
    for report in enforcement.stages:
        await scope.recorder.emit(events.ValidationStage(report), duration_s=report.duration_s, caused_by=caused_by)
        if report.outcome is StageOutcome.REPAIRED:
            await scope.recorder.emit(events.RepairApplied(report.stage, report.reasons), caused_by=caused_by)
    return enforcement


async def _tell_judgement(request: Request, enforcement: Enforcement, scope: RunScope, caused_by: str) -> None:
    """Emit the events of the inference that judged an output."""
    took_s = sum(stage.duration_s for stage in enforcement.stages if stage.stage is Stage.SEMANTIC)
    start = events.InferenceStart(
        message_count=0,
        tool_defs_count=0,
        schema_present=True,
        grammar_present=False,
        temperature=0.0,
        purpose=events.InferencePurpose.JUDGE,
    )
    judged = InferenceOutput("", FinishReason.STOP, usage=enforcement.judge_usage, model=request.hints.model)
    await scope.recorder.emit(start, caused_by=caused_by)
    await scope.recorder.emit(end_of(judged), duration_s=took_s, caused_by=caused_by)
