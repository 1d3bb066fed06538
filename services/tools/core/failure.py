"""The error of a tool that cannot give a result."""

from __future__ import annotations


class ToolFailed(Exception):
    """The tool failed for a reason that the model may read.

    Args:
        message: The reason and the next step, in lower case, without secrets.
        is_final: Whether the same call would fail again; a final failure is not retried.
    """

    def __init__(self, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.is_final = is_final
