"""Model Context Protocol servers that others wrote, in the tools service of a real system's kind."""

from pathlib import Path

import pytest

from pagantic.tools.v1 import tools_service_pb2 as pb
from tests.integration.tools.mcp_service import mcp_service, said, status, tools
from tests.support.node_packages import installed

FOLDER = Path(__file__).parent / "node_everything"


@pytest.fixture(scope="session")
def everything():
    """The entry of the protocol's own server of everything, which runs in Node.js."""
    program = installed(FOLDER) / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    return {"command": "node", "args": [str(program)], "trustAnnotations": True}


async def test_the_server_of_everything_can_be_used(tmp_path, everything):
    async with mcp_service(tmp_path, {"all": everything}) as stub:
        server = await status(stub, "all")
        assert (server.reason, dict(server.left_out_tools)) == ("", {})
        names = {name for name in await tools(stub) if name.startswith("all_")}
        assert len(names) == server.tool_count > 5
        assert await said(stub, "all_echo", message="hello") == "Echo: hello"
        assert "5" in await said(stub, "all_get-sum", a=2, b=3)
        assert "image/png" in await said(stub, "all_get-tiny-image")
        resources = (await stub.ListMcpResources(pb.ListMcpResourcesRequest(server="all"))).resources
        read = await stub.ReadMcpResource(pb.ReadMcpResourceRequest(server="all", uri=resources[0].uri))
        assert read.contents[0].text or read.contents[0].blob
        prompts = (await stub.ListMcpPrompts(pb.ListMcpPromptsRequest(server="all"))).prompts
        simple = next(prompt for prompt in prompts if not prompt.arguments)
        assert (await stub.GetMcpPrompt(pb.GetMcpPromptRequest(server="all", name=simple.name))).messages
