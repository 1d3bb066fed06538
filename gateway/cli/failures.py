"""Determines the exit code and the user's next step for each failure of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, MessageTooLarge, PaganticError, Unreachable
from pagantic_common.storage.installed import reaching_step

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REQUEST = 3
EXIT_INFERENCE = 4
EXIT_TOOL = 5
EXIT_OUTPUT = 6
EXIT_UNAVAILABLE = 7
EXIT_CANCELLED = 8
EXIT_PARTLY = 9
EXIT_INTERRUPTED = 130

EXIT_CODES_HELP = (
    "Exit codes: 0 success; 1 unexpected failure, or a check that failed; 2 wrong usage; 3 wrong request, "
    "credentials or configuration; 4 inference failed; 5 a tool failed; 6 the output is invalid or was cut; 7 the "
    "system is not available or could not finish; 8 cancelled or out of time; 9 some files were not stored; 130 Ctrl-C."
)

_EXIT_OF_CODE = {
    ErrorCode.INFERENCE_OUTPUT_TRUNCATED: EXIT_OUTPUT,
    ErrorCode.CONFIG_SOURCE_UNAVAILABLE: EXIT_UNAVAILABLE,
    ErrorCode.QUOTA_RATE: EXIT_UNAVAILABLE,
    ErrorCode.QUOTA_CONCURRENCY: EXIT_UNAVAILABLE,
}
_EXIT_OF_CATEGORY = {
    ErrorCategory.INFERENCE_FAILURE: EXIT_INFERENCE,
    ErrorCategory.TOOL_FAILURE: EXIT_TOOL,
    ErrorCategory.CONSTRAINT_FAILURE: EXIT_OUTPUT,
    ErrorCategory.VALIDATION_FAILURE: EXIT_OUTPUT,
    ErrorCategory.ORCHESTRATION_FAILURE: EXIT_UNAVAILABLE,
    ErrorCategory.CONFIGURATION_FAILURE: EXIT_REQUEST,
    ErrorCategory.CANCELLATION: EXIT_CANCELLED,
    ErrorCategory.ACCESS_FAILURE: EXIT_REQUEST,
}
_EXIT_OF_CLASS: tuple[tuple[type[PaganticError], int], ...] = (
    (errors.Unavailable, EXIT_UNAVAILABLE),
    (errors.Overloaded, EXIT_UNAVAILABLE),
    (errors.Aborted, EXIT_UNAVAILABLE),
    (errors.DeadlineExceeded, EXIT_CANCELLED),
    (errors.Cancelled, EXIT_CANCELLED),
    (errors.Internal, EXIT_FAILED),
)
_SEE = "see what happened with `pagantic timeline {id}`"
_NEXT_OF_CODE: dict[ErrorCode | None, str] = {
    ErrorCode.INFERENCE_CONTEXT_EXCEEDED: "shorten the text, or start another --session",
    ErrorCode.INFERENCE_OUTPUT_TRUNCATED: "allow more output with --max-tokens, or ask for less",
    ErrorCode.INFERENCE_MODEL_UNAVAILABLE: "see the models there are with `pagantic models`",
    ErrorCode.TOOL_NOT_FOUND: "see the tools there are with `pagantic tools`",
    ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE: "see which service is down with `pagantic status`",
    ErrorCode.CONFIG_NO_ENGINE: "see the models there are with `pagantic models`",
    ErrorCode.CONFIG_MODEL_NOT_FOUND: "of a name: see the short names with `pagantic models --catalog`, and what is "
    "here with `pagantic models`; of a file: check its path",
    ErrorCode.CONFIG_MODEL_CORRUPT: "of a hub, a URL or the catalog: pull it again, and if it stays so, do not use "
    "this source; of a file: get it anew from where it came, or pull another one",
    ErrorCode.CONFIG_NO_SPACE: "free space, or set PAGANTIC_MODELS_FOLDER to a folder on a larger disk; then pull "
    "again, which continues",
    ErrorCode.CONFIG_SOURCE_UNAVAILABLE: "check the network and the address; then pull again, which continues",
    ErrorCode.CONFIG_SOURCE_DENIED: "of a hub: accept the model's terms on its page, and set HF_TOKEN; of a URL: add "
    "its host to PAGANTIC_MODELS_HOSTS",
    ErrorCode.AUTH_MISSING: "put an API key into a file, and its path into PAGANTIC_API_KEY_FILE",
    ErrorCode.AUTH_INVALID: "have an administrator look at the key with `pagantic keys list`",
    ErrorCode.AUTH_EXPIRED: "have an administrator create another key with `pagantic keys create`",
    ErrorCode.QUOTA_BUDGET: "see what is left with `pagantic budgets show`",
    ErrorCode.QUOTA_STORAGE: "delete what is not needed with `pagantic sessions delete` or `pagantic collections "
    "delete`, or have the storage of the tenant raised",
    ErrorCode.GUARD_BLOCKED: "change the text; the operator's file of guards says what may not pass",
    ErrorCode.AUTH_DENIED: "use a key with the scope that the message names",
    ErrorCode.CANCELLED_SIGNAL: "send it again; under the same --request-id it runs once more",
}
# OPTION_OF maps the fields of requests, which appear in the services' messages, to options.
_FIELD = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")
OPTION_OF = {
    "session_id": "--session",
    "hints.max_tokens": "--max-tokens",
    "hints.timeout": "--timeout",
    "hints.temperature": "--temperature",
    "hints.seed": "--seed",
    "hints.model": "--model",
    "hints.stop": "--stop",
    "hints.tool_choice": "--tool-choice",
    "hints.reasoning": "--reasoning",
    "hints.reasoning.mode": "--reasoning",
    "output.schema_json": "--schema",
    "voting.n": "-n",
    "voting.strategy": "--strategy",
    "voting.min_agreement": "--min-agreement",
    "voting.early_stop": "--early-stop",
    "context.collection": "--context",
    "context.retriever": "--retriever",
    "context.max_chunks": "--chunks",
    "context.filter": "--filter",
    "context.query_expansion.queries": "--queries",
    "context.query_expansion.hypothetical_document": "--hyde",
    "context.answerability.min_probability": "--min-probability",
    "context.answerability.slope": "--slope",
    "context.answerability.intercept": "--intercept",
    "replay.from_step": "--fork",
    "replay.tools": "--live-tools",
}
_options: ContextVar[frozenset[str]] = ContextVar("options", default=frozenset())


def exit_code_of(error: PaganticError) -> int:
    """Return the exit code for a failure."""
    if error.code in _EXIT_OF_CODE:
        return _EXIT_OF_CODE[error.code]
    if error.failure.category is not None:
        return _EXIT_OF_CATEGORY[error.failure.category]
    return next((code for cls, code in _EXIT_OF_CLASS if isinstance(error, cls)), EXIT_REQUEST)


@contextmanager
def offering(options: Iterable[str]) -> Iterator[None]:
    """Make messages inside the block refer to the options of the running command."""
    token = _options.set(frozenset(options))
    try:
        yield
    finally:
        _options.reset(token)


def next_step_of(error: PaganticError, request_id: str = "") -> str:
    """Return the user's next step as a single line."""
    if step := _NEXT_OF_CODE.get(error.code) or _option_step(str(error)):
        return step
    for cls, describe in _NEXT_OF_CLASS:
        if isinstance(error, cls):
            return describe(error, request_id)
    if error.failure.category is ErrorCategory.CONFIGURATION_FAILURE:
        return "change what the message names, and try again"
    if not request_id:
        return "change the request as the message says"
    if error.failure.retryable:
        return f"try again, or {_SEE.format(id=request_id)}"
    return _SEE.format(id=request_id)


def _option_step(message: str) -> str:
    """Return the next step for a message that begins with a field, or an empty string if no option sets the field."""
    begin = _FIELD.match(message)
    if begin is None:
        return ""
    option = OPTION_OF.get(begin[0], "")
    if option not in _options.get():
        return ""
    return f"change {option}, which the message calls {begin[0]}"


def _after_unreachable(error: PaganticError, _request_id: str) -> str:
    if isinstance(error, Unreachable):
        return (
            f"{reaching_step()}, name another address with --address, or set PAGANTIC_TLS as the services have it; "
            "then send it again"
        )
    return "see which service is down with `pagantic status`; then send it again"


def _after_overload(error: PaganticError, _request_id: str) -> str:
    if not error.retry_after_s:
        return "try again later"
    return f"try again in {error.retry_after_s:.0f} s"


def _after_not_found(_error: PaganticError, _request_id: str) -> str:
    return "check the name; `pagantic executions`, `sessions`, `collections` and `models` list what there is"


def _after_precondition(_error: PaganticError, request_id: str) -> str:
    if request_id:
        return _SEE.format(id=request_id)
    return "change what the message names first, then try again"


def _after_fault(_error: PaganticError, request_id: str) -> str:
    if not request_id:
        return "read the service's log with `pagantic logs`"
    return f"{_SEE.format(id=request_id)}, or read the service's log with `pagantic logs`"


_NEXT_OF_CLASS: tuple[tuple[type[PaganticError], Callable[[PaganticError, str], str]], ...] = (
    (
        MessageTooLarge,
        lambda _error, _id: "send less text, or `pagantic ingest` it and name it with --context",
    ),
    (errors.Unavailable, _after_unreachable),
    (errors.DeadlineExceeded, lambda _error, _id: "allow more time with --timeout, or less output with --max-tokens"),
    (errors.Overloaded, _after_overload),
    (errors.Aborted, lambda _error, _id: "send it again when the other turn of this session has ended"),
    (errors.NotFound, _after_not_found),
    (errors.PreconditionFailed, _after_precondition),
    (errors.Internal, _after_fault),
)
