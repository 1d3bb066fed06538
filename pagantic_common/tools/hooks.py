"""Hooks: a deployment's code that runs before and after each tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ToolDenied(Exception):
    """A hook denies a call. The model receives the message."""


class ToolHook:
    """Changes or denies calls, and redacts results. Subclasses define the methods that they need, async or not.

    If a hook raises any error except ToolDenied, the call fails and its result is not shown.
    """

    def before(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return new arguments for the call, which are checked again, or None to keep the given arguments.

        Raises ToolDenied if the call must not be made.
        """

    def after(self, tool: str, arguments: Mapping[str, Any], result: str) -> Any:
        """Return the text that replaces a result or a failure message for the caller, or None to keep it."""
