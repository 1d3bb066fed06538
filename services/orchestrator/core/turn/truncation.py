"""Detects answers that a limit or a stop text ended too early, and finds a higher limit for a retry."""

from __future__ import annotations

from typing import Any

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.validation import Enforcement, Stage, StageOutcome
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.model.response_warning import ResponseWarning

RAISED_LIMIT_FACTOR = 4
_SPARE_TOKENS = 8  # margin, since the tokens of a retry's prompt may differ a little

TRUNCATED, TOO_LARGE = "output_truncated", "output_too_large"
CUT_CODES = frozenset({TRUNCATED, TOO_LARGE})  # the warning codes of a truncated answer


def is_cut(request: Request, output: InferenceOutput | None, enforcement: Enforcement) -> bool:
    """Return whether a limit or a stop text cut off an answer that has a contract.

    Such an answer is invalid, or was completed only by a repair. A remote engine does not report which stop text ended
    its output, so a repaired output counts as cut where the request has any.
    """
    if output is None or request.output.is_empty:
        return False
    was_repaired = any(
        stage.stage is Stage.JSON_REPAIR and stage.outcome is StageOutcome.REPAIRED for stage in enforcement.stages
    )
    if output.finish_reason is FinishReason.LENGTH or output.matched_stop:
        return was_repaired or not enforcement.valid
    return was_repaired and bool(request.hints.stop)


def truncation_of(request: Request, output: InferenceOutput, max_tokens: int = 0) -> Failure:
    """Return the failure for an answer that was cut off at `max_tokens` or by a stop text.

    A `max_tokens` of 0 selects the limit in the request, or else the default. Only the failure of an answer that a stop
    text ended has the detail `stop`, which is empty if it is unknown which one it was.
    """
    limit = max_tokens or request.hints.max_tokens
    usage = output.usage
    details: dict[str, Any] = {
        "max_tokens": limit,
        "output_tokens": usage.output_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "context_window": usage.context_window,
    }
    if output.max_bytes:
        details["max_bytes"] = output.max_bytes
    if output.finish_reason is not FinishReason.LENGTH:
        details["stop"] = output.matched_stop
    return failure_of(ErrorCode.INFERENCE_OUTPUT_TRUNCATED, _message_of(output, limit), details=details)


def _message_of(output: InferenceOutput, limit: int) -> str:
    usage = output.usage
    if output.finish_reason is not FinishReason.LENGTH:
        return "a stop text ended the answer before it was complete: leave it out of hints.stop"
    if output.max_bytes:
        return (
            f"the answer was cut at {output.max_bytes} bytes, half of MAX_MESSAGE_BYTES, before it was complete: ask "
            "for less, or for fewer log-probabilities"
        )
    if is_window_full(output):
        return (
            f"the answer was cut at the end of the context window of {usage.context_window} tokens, of which the "
            f"prompt took {usage.prompt_tokens}: shorten the prompt or ask for less"
        )
    name = f"max_tokens {limit}"
    if limit == 0:
        name = f"{usage.output_tokens} tokens, the default of max_tokens,"
    return f"the answer was cut at {name} before it was complete: raise hints.max_tokens or ask for less"


def is_window_full(output: InferenceOutput) -> bool:
    """Return whether the prompt and the answer filled the context window."""
    usage = output.usage
    return 0 < usage.context_window <= usage.context_tokens


def raised_limit(request: Request, output: InferenceOutput, max_tokens: int) -> int:
    """Return a higher max_tokens for another attempt, or 0 if a higher limit would not help.

    A higher limit does not help if the request set the limit, if the context window is full or unknown, or if the
    answer has reached its size limit.
    """
    usage = output.usage
    is_open = output.finish_reason is FinishReason.LENGTH and not (request.hints.max_tokens or output.max_bytes)
    if not is_open or usage.context_window <= 0:
        return 0
    room = usage.context_window - usage.prompt_tokens - _SPARE_TOKENS
    raised = min(room, RAISED_LIMIT_FACTOR * max(max_tokens, usage.output_tokens))
    if raised <= usage.output_tokens:
        return 0
    return raised


def truncation_warning(failure: Failure) -> ResponseWarning:
    """Return the warning for a truncated response that is delivered."""
    return ResponseWarning(TOO_LARGE if "max_bytes" in failure.details else TRUNCATED, failure.message)
