"""With more tools than fit a prompt, a model is offered those that its request is about."""

from dataclasses import replace

from pagantic.common.v1 import message_pb2
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from services.orchestrator.ports.services import OfferedTool
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedTools, scripted_services

COUNT = 1000


class ManyTools(ScriptedTools):
    """Has a thousand tools; every tenth one writes."""

    async def list_tools(self, names):
        kinds = [ToolSafety.WRITE if number % 10 == 0 else ToolSafety.READ for number in range(COUNT)]
        definitions = [
            ToolDefinition(f"tool{number}", "x" * 90, "{}", safety=kind) for number, kind in enumerate(kinds)
        ]
        return [OfferedTool(one, is_available=True) for one in definitions if not names or one.name in names]


def many(**settings):
    return replace(scripted_services(tools=ManyTools()), max_offered_tool_bytes=1000, **settings)


def offered(services):
    return [tool.name for tool in services.inference.commands[-1].tools]


async def test_the_tools_that_fit_are_offered_and_the_response_says_so(tmp_path):
    services = many()
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request("Use tool17 or tool901, not tool10."))
    assert {"tool17", "tool901"} <= set(offered(services))
    assert "tool10" not in services.tools.searched[1], "it writes, so it is offered only by name"
    assert len(offered(services)) <= 10
    (warning,) = response.warnings
    assert (warning.code, "of 900 tools" in warning.message) == ("tools_selected", True)


async def test_words_that_fit_no_tool_leave_some_of_them(tmp_path):
    services = many()
    async with orchestrator(tmp_path, services) as stub:
        await execute(stub, system_request("Hello."))
    assert 0 < len(offered(services)) <= 10


async def test_a_chosen_tool_is_offered_whatever_the_words_are(tmp_path):
    services = many()
    request = system_request("Hello.")
    request.hints.tool_choice.CopyFrom(message_pb2.ToolChoice(tool_name="tool5"))
    async with orchestrator(tmp_path, services) as stub:
        await execute(stub, request)
    assert "tool5" in offered(services)


async def test_tools_that_a_request_names_are_all_offered(tmp_path):
    services = many()
    names = [f"tool{number}" for number in range(20)]
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request("Hello.", tools=names))
    assert sorted(offered(services)) == sorted(names)
    assert not response.warnings
