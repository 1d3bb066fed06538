"""The ports of the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pagantic_common.domain.messages import ToolDefinition, ToolProgress

Report = Callable[[ToolProgress], None]


class Tool(Protocol):
    """A tool that the model can call."""

    @property
    def definition(self) -> ToolDefinition:
        """Its name, purpose and parameters."""

    @property
    def unavailable_reason(self) -> str:
        """The reason why it cannot be called now; empty when it can."""

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the result for arguments that satisfy the schema; raises ToolFailed. Can be cancelled.

        `report` is called in the event loop with how far the run is.
        """
