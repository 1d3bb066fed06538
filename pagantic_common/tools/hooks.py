"""Hooks: a deployment's code before and after each call of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ToolDenied(Exception):
    """A hook denies a call; the model receives the message."""


class ToolHook:
    """Changes or denies calls, and redacts results. Subclasses define the methods that they need, async or not.

    A hook that raises anything but ToolDenied fails the call, and its result stays unseen.
    """

    def before(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return the arguments for the call, which are checked again; None keeps the given arguments.

        Raises ToolDenied for a call that must not be made.
        """

    def after(self, tool: str, arguments: Mapping[str, Any], result: str) -> Any:
        """Return the text that replaces a result, or a failure's message, for the caller; None keeps it."""
