"""Limits the size of a response."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, Response
from services.orchestrator.core.text_size import encoded_bound
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.ending import Failed, Finish
from services.orchestrator.core.turn.run import Outcome, Run


def fit_response(run: Run, happened: Answer, outcome: Outcome, max_bytes: int) -> tuple[Outcome, Answer]:
    """Return the outcome and the input, or a failure's outcome and input if the response is too large.

    A message too large to send would break the stream at its end, and would break every later request for the
    response. So the execution fails instead, and its response has no texts. ListSteps still has the results of earlier
    steps if the request is kept; otherwise the texts are lost.
    """
    finish = outcome.command
    if not isinstance(finish, Finish):
        return outcome, happened
    size = encoded_bound(finish.response)
    if size <= max_bytes:
        return outcome, happened
    failure = finish.response.failure
    if failure is None:
        failure = _too_large(size, max_bytes)
        stopped = InferenceOutput("", FinishReason.ERROR, model=outcome.run.model)  # The usage counts for this model.
        happened = Failed(failure, usage=happened.total_usage, output=stopped)
        outcome = machine.step(run, happened)
    turn = outcome.command.turn if isinstance(outcome.command, Finish) else ()
    bare = Finish(_bare(finish.response, failure), turn)
    return replace(outcome, run=replace(outcome.run, outstanding=bare)), happened


def _too_large(size: int, max_bytes: int) -> Failure:
    message = (
        f"the response has up to {size} bytes, at most {max_bytes} can be sent (MAX_MESSAGE_BYTES): ask for less, with "
        "fewer steps, candidates or tool calls; with keep_request, ListSteps has what each earlier step gave"
    )
    return failure_of(ErrorCode.INFERENCE_OUTPUT_TRUNCATED, message, details={"max_bytes": max_bytes})


def _bare(response: Response, failure: Failure) -> Response:
    return Response(
        request_id=response.request_id,
        session_id=response.session_id,
        usage=response.usage,
        failure=replace(failure, caused_by=()),
        finish_reason=response.finish_reason,
        seed=response.seed,
        variant=response.variant,
    )
