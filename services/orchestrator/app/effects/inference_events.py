"""Emits the start and end events of an inference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pagantic_common.domain.errors import Failure, PaganticError
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import InferenceOutput
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample


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
