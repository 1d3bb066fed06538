"""Failures as text: the error and the next step in the terminal program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.cli.failures import next_step_of
from pagantic_common.domain.errors import (
    Aborted,
    DeadlineExceeded,
    ErrorCode,
    MessageTooLarge,
    PaganticError,
    Unreachable,
)
from pagantic_common.domain.text.terminal import visible_text
from pagantic_common.rpc.status import status_code_of
from pagantic_common.storage.installed import reaching_step

_NEXT_OF_CODE: Final = {
    ErrorCode.INFERENCE_CONTEXT_EXCEEDED: "shorten the text, or begin another conversation with Ctrl+N",
    ErrorCode.INFERENCE_OUTPUT_TRUNCATED: "allow more tokens in the options, Ctrl+G, or ask for less",
    ErrorCode.INFERENCE_MODEL_UNAVAILABLE: "choose another model in the options, Ctrl+G",
    ErrorCode.CONFIG_NO_ENGINE: "choose another model in the options, Ctrl+G",
    ErrorCode.TOOL_NOT_FOUND: "choose other tools in the options, Ctrl+G",
    ErrorCode.CANCELLED_SIGNAL: "send it again",
}
_NEXT_OF_CLASS: Final[tuple[tuple[type[PaganticError], str], ...]] = (
    (
        MessageTooLarge,
        "send less text, or `pagantic ingest` it, and name its collection in the options, Ctrl+G",
    ),
    (DeadlineExceeded, "see which service is busy with `pagantic status`; then send it again"),
    (Aborted, "send it again when the other turn of this conversation has ended"),
)


@dataclass(frozen=True)
class Failure:
    """A failure for display: its code, its message, the request and the next step."""

    code: str
    message: str
    next_step: str
    request_id: str = ""

    @property
    def in_short(self) -> str:
        """The failure and the next step as text that is safe for a terminal."""
        return visible_text(f"{self.code}: {self.message}\nnext: {self.next_step}")

    @classmethod
    def of(cls, error: PaganticError, request_id: str = "") -> Failure:
        """Return an error as a failure for display."""
        code = status_code_of(error).name
        if error.code is not None:
            code = error.code.value
        return cls(code, " ".join(str(error).split()), _next_step(error, request_id), request_id)


def _next_step(error: PaganticError, request_id: str) -> str:
    if error.code in _NEXT_OF_CODE:
        return _NEXT_OF_CODE[error.code]
    if isinstance(error, Unreachable):
        return (
            f"{reaching_step()} in another terminal, or set PAGANTIC_ADDRESS, or PAGANTIC_TLS as the services have it; "
            "then send it again"
        )
    for kind, step in _NEXT_OF_CLASS:
        if isinstance(error, kind):
            return step
    return next_step_of(error, request_id)
