"""The tools service, with a span and a measurement for each tool call."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.messages import ToolCall
from pagantic_common.telemetry import genai
from pagantic_common.telemetry.genai import Operation
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_histogram
from pagantic_common.telemetry.names import ERROR_TYPE, ORCHESTRATOR_TOOL_DURATION
from pagantic_common.telemetry.tracing import Attributes, note_error
from services.orchestrator.app.recording.observing.measured import measured
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.ports.services import OfferedTool, Report, ToolsPort

UNKNOWN = "_OTHER"

tool_duration = make_histogram(
    ORCHESTRATOR_TOOL_DURATION, "how long tool calls took that ended", unit="s", bounds=DURATION_BOUNDS_S
)


class ObservedTools(ToolsPort):
    """A tools service that records a span and a measurement for each tool call."""

    def __init__(self, tools: ToolsPort) -> None:
        self._tools = tools

    async def list_tools(self, names: Sequence[str]) -> list[OfferedTool]:
        return await self._tools.list_tools(names)

    async def search_tools(self, query: str, names: Sequence[str], limit: int) -> list[str]:
        return await self._tools.search_tools(query, names, limit)

    async def execute(self, call: ToolCall, report: Report) -> ToolCallRecord:
        attributes: Attributes = {
            genai.OPERATION_NAME: Operation.EXECUTE_TOOL.value,
            genai.TOOL_NAME: call.name,
            genai.TOOL_TYPE: "function",
            genai.TOOL_CALL_ID: call.id,
        }
        labels = {genai.TOOL_NAME: call.name}
        with measured(f"{Operation.EXECUTE_TOOL.value} {call.name}", attributes, tool_duration, labels) as opened:
            record = await self._tools.execute(call, report)
            if record.is_error:
                labels[ERROR_TYPE] = record.error_code.value if record.error_code is not None else UNKNOWN
                note_error(opened, labels[ERROR_TYPE])
        return record
