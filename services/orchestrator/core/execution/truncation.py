"""Answers that a limit cut before they were complete."""

from __future__ import annotations

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.validation import Enforcement, Stage, StageOutcome
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.model.response_warning import ResponseWarning

RAISED_LIMIT_FACTOR = 4
_SPARE_TOKENS = 8  # a retry's prompt may be tokenized a little differently

TRUNCATED = "output_truncated"


def is_cut(request: Request, output: InferenceOutput | None, enforcement: Enforcement) -> bool:
    """Tell whether an answer under a contract ended at a limit or a stop text, so that only a repair could close it."""
    if output is None or request.output.is_empty:
        return False
    was_repaired = any(
        stage.stage is Stage.JSON_REPAIR and stage.outcome is StageOutcome.REPAIRED for stage in enforcement.stages
    )
    if output.finish_reason is FinishReason.LENGTH:
        return was_repaired or not enforcement.valid
    return was_repaired and bool(request.hints.stop)


def truncation_of(request: Request, output: InferenceOutput, max_tokens: int = 0) -> Failure:
    """Return the failure of an answer that was cut at `max_tokens`, 0 for the limit that the request left open."""
    limit = max_tokens or request.hints.max_tokens
    usage = output.usage
    if output.finish_reason is not FinishReason.LENGTH:
        text = "a stop text ended the answer before it was complete: leave it out of hints.stop"
    elif is_window_full(output):
        text = (
            f"the answer was cut at the end of the context window of {usage.context_window} tokens, of which the "
            f"prompt took {usage.prompt_tokens}: shorten the prompt or ask for less"
        )
    else:
        name = f"max_tokens {limit}" if limit else f"{usage.output_tokens} tokens, the default of max_tokens"
        text = f"the answer was cut at {name} before it was complete: raise hints.max_tokens or ask for less"
    details = {
        "max_tokens": limit,
        "output_tokens": usage.output_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "context_window": usage.context_window,
    }
    return failure_of(ErrorCode.INFERENCE_OUTPUT_TRUNCATED, text, details=details)


def is_window_full(output: InferenceOutput) -> bool:
    """Tell whether the prompt and the answer filled the context window."""
    usage = output.usage
    return 0 < usage.context_window <= usage.context_tokens


def raised_limit(request: Request, output: InferenceOutput, max_tokens: int) -> int:
    """Return a higher max_tokens for another attempt, 0 where the request set the limit or the window has no more."""
    usage = output.usage
    is_open = output.finish_reason is FinishReason.LENGTH and not request.hints.max_tokens
    if not is_open or usage.context_window <= 0:
        return 0
    room = usage.context_window - usage.prompt_tokens - _SPARE_TOKENS
    raised = min(room, RAISED_LIMIT_FACTOR * max(max_tokens, usage.output_tokens))
    return raised if raised > usage.output_tokens else 0


def truncation_warning(failure: Failure) -> ResponseWarning:
    """Return what a response that is delivered although it was cut says of it."""
    return ResponseWarning(TRUNCATED, failure.message)
