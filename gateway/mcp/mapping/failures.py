"""Describes failures for people and models at a client of the protocol: code, message and next step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, MessageTooLarge, PaganticError, Unreachable
from pagantic_common.rpc.status import status_code_of
from pagantic_common.storage.installed import reaching_step


@dataclass(frozen=True, slots=True)
class FailureText:
    """A failure described as text.

    Attributes:
    code: The system's error code, or the name of the gRPC status if the failure has no code.
    message: A description of the failure.
    next_step: The caller's next step.
    is_retryable: Whether the same call may succeed later.
    """

    code: str
    message: str
    next_step: str
    is_retryable: bool

    @property
    def text(self) -> str:
        """The whole description, with a line for each part."""
        return f"{self.code}: {self.message}\nnext: {self.next_step}"


def describe_failure(error: PaganticError) -> FailureText:
    """Return the description of an error."""
    code = status_code_of(error).name
    if error.code is not None:
        code = error.code.value
    is_retryable = error.failure.retryable or isinstance(error, errors.Unavailable)
    return FailureText(code, str(error), _next_step_of(error, is_retryable), is_retryable)


def _next_step_of(error: PaganticError, is_retryable: bool) -> str:
    if error.code in _NEXT_OF_CODE:
        return _NEXT_OF_CODE[error.code]
    for cls, describe in _NEXT_OF_CLASS:
        if isinstance(error, cls):
            return describe(error)
    if error.failure.category is ErrorCategory.CONFIGURATION_FAILURE:
        return "change what the message names, and call again"
    if is_retryable:
        return "call again"
    return "change the call as the message says; `pagantic timeline` with the request's id shows what happened"


def _after_overload(error: PaganticError) -> str:
    if not error.retry_after_s:
        return "call again later"
    return f"call again in {error.retry_after_s:.0f} s"


_NEXT_OF_CODE: dict[ErrorCode | None, str] = {
    ErrorCode.INFERENCE_CONTEXT_EXCEEDED: "shorten the text, or begin another session_id",
    ErrorCode.INFERENCE_OUTPUT_TRUNCATED: "allow more output with max_tokens, or ask for less",
    ErrorCode.TOOL_NOT_FOUND: "see which tools there are with tools/list",
    ErrorCode.TOOL_INVALID_ARGUMENTS: "correct the argument that the message names, and call again",
    ErrorCode.TOOL_DENIED: "a policy of the deployment forbids it: ask its operator",
    ErrorCode.TOOL_OUTCOME_UNKNOWN: "find out whether it happened before you ask for it again",
    ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE: "have the deployment's operator look at `pagantic status`",
    ErrorCode.ORCHESTRATION_NO_CONSENSUS: "ask more precisely, raise n, or lower min_agreement",
    ErrorCode.ORCHESTRATION_NOT_ANSWERABLE: "ask what the collection has, or add documents that answer it",
    ErrorCode.ORCHESTRATION_TURN_WAITING: "end what the named execution waits for, or cancel it",
    ErrorCode.AUTH_MISSING: "send an API key as `Authorization: Bearer KEY`, or set PAGANTIC_API_KEY_FILE for stdio",
    ErrorCode.AUTH_INVALID: "send another API key",
    ErrorCode.AUTH_EXPIRED: "have an administrator create another API key",
    ErrorCode.AUTH_DENIED: "use an API key with the scope that the message names",
    ErrorCode.QUOTA_BUDGET: "ask for fewer tokens, or have the budget raised",
    ErrorCode.QUOTA_STORAGE: "have what is not needed deleted, or the storage of the tenant raised",
    ErrorCode.GUARD_BLOCKED: "change the text: a guard of the deployment lets it not pass",
    ErrorCode.CANCELLED_SIGNAL: "call again if the answer is still wanted",
}
_NEXT_OF_CLASS: tuple[tuple[type[PaganticError], Callable[[PaganticError], str]], ...] = (
    (MessageTooLarge, lambda _error: "send less text, or store it in a collection and name that"),
    (Unreachable, lambda _error: f"{reaching_step()}, or set PAGANTIC_ADDRESS to where the system is"),
    (errors.Unavailable, lambda _error: "have the deployment's operator look at `pagantic status`; then call again"),
    (errors.DeadlineExceeded, lambda _error: "allow more time with timeout_s, or less output with max_tokens"),
    (errors.Overloaded, _after_overload),
    (errors.Aborted, lambda _error: "call again when the other turn of this session_id has ended"),
    (errors.Internal, lambda _error: "read the log of the service with `pagantic logs`"),
)
