"""Makes tools from typed functions: `@tool`."""

from __future__ import annotations

from pagantic_common.domain.messages import ToolFailed, ToolSafety
from pagantic_common.tools.call import ToolCancelled, ToolContext, ToolNotRun
from pagantic_common.tools.function import FunctionTool, tool
from pagantic_common.tools.hooks import ToolDenied, ToolHook

__all__ = [
    "FunctionTool",
    "ToolCancelled",
    "ToolContext",
    "ToolDenied",
    "ToolFailed",
    "ToolHook",
    "ToolNotRun",
    "ToolSafety",
    "tool",
]
