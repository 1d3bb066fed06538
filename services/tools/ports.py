"""What the app needs from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pagantic_common.domain.messages import ToolDefinition


class Tool(Protocol):
    """Something that the model can call."""

    @property
    def definition(self) -> ToolDefinition:
        """What it is called, does and takes."""

    @property
    def unavailable_reason(self) -> str:
        """Why it cannot be called now; empty when it can."""

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """Return the result for arguments that satisfy the schema; raises ToolFailed. Stops when cancelled."""
