"""The origin of a tool: who brought it, without the numbers that keep sources apart."""

from services.tools.app.registry import NUMBER_MARK, ToolRegistry
from tests.unit.tools.test_mcp_connection import FakeTool


def test_a_tool_has_the_origin_that_brought_it():
    registry = ToolRegistry([FakeTool("own")])
    registry.replace(f"mcp server files{NUMBER_MARK}7", [FakeTool("read")])
    registry.replace("provider crm", [FakeTool("find")])
    origins = [registry.origin_of(name) for name in ("own", "read", "find", "gone")]
    assert origins == ["", "mcp server files", "provider crm", ""]
