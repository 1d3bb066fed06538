"""Tools as clients of the protocol see and call them, on both wires."""

import asyncio
import json
from dataclasses import replace

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from gateway.mcp import tools
from pagantic_common.domain.errors import ErrorCode, PermissionDenied, Unavailable
from pagantic_common.domain.messages import ToolProgress
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.tools.policy import parse_policy
from tests.support.mcp_app import LEGACY, MODERN, call, serving_mcp
from tests.support.ports import free_ports
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services

WIRES = pytest.mark.parametrize("mode", ["legacy", MODERN])
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def saying(*outputs):
    return scripted_services(inference=ScriptedInference(*outputs))


@WIRES
async def test_own_tools_and_those_of_the_deployment_are_listed_with_what_they_may_do(served, mode):
    async with served() as server, Client(server.url, mode=mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(listed) == ["ask", "extract", "vote", "plan", "clock"]
    assert listed["clock"].annotations.read_only_hint
    assert not listed["clock"].annotations.open_world_hint
    assert not listed["ask"].annotations.read_only_hint
    assert set(listed["extract"].input_schema["required"]) == {"text", "schema"}


async def test_a_tool_of_the_deployment_whose_name_is_taken_gets_a_prefix_and_can_be_called(served):
    async with served() as server:
        registered = server.world.tools
        registered.definition = replace(registered.definition, name="ask")
        async with Client(server.url) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            called = await client.call_tool("deployment.ask", {})
    assert names[-2:] == ["plan", "deployment.ask"]
    assert called.content[0].text == "noon"


async def test_a_tool_that_the_deployment_denies_is_not_listed(served):
    denied = replace(scripted_services(), tool_policy=parse_policy("clock=deny"))
    async with served(denied) as server, Client(server.url) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert names == ["ask", "extract", "vote", "plan"]


@WIRES
async def test_ask_answers_with_the_id_of_its_execution(served, mode):
    async with served(saying(answer("It is noon."))) as server, Client(server.url, mode=mode) as client:
        result = await client.call_tool("ask", {"question": "What time is it?", "system": "Be brief."})
        execution = await server.world.stub.journal.get(_key(result.meta["pagantic/request_id"]))
    assert not result.is_error
    assert result.content[0].text == "It is noon."
    assert execution.state.name == "COMPLETE"


def _key(request_id):
    return ExecutionKey("default", request_id)


@WIRES
async def test_extract_gives_text_and_structured_content(served, mode):
    async with served(saying(answer('{"ok":true}'))) as server, Client(server.url, mode=mode) as client:
        result = await client.call_tool("extract", {"text": "All is well.", "schema": SCHEMA})
    assert json.loads(result.content[0].text) == result.structured_content == {"ok": True}
    assert result.meta["pagantic/guarantee"] == "ENFORCED"


async def test_vote_gives_the_winner_and_its_confidence(served):
    outputs = [answer('{"ok":true}'), answer('{"ok":true}'), answer('{"ok":false}')]
    async with served(saying(*outputs)) as server, Client(server.url) as client:
        result = await client.call_tool("vote", {"question": "Is all well?", "schema": SCHEMA, "n": 3})
    assert result.structured_content == {"ok": True}
    assert result.meta["pagantic/confidence"] == pytest.approx(2 / 3)
    assert "confidence 0.67" in result.content[1].text


async def test_plan_runs_given_steps(served):
    steps = [{"name": "time", "kind": "tool", "parameters": {"tool": "clock", "arguments": {}}}]
    async with served() as server, Client(server.url) as client:
        result = await client.call_tool("plan", {"task": "Tell the time.", "steps": steps})
    assert result.content[0].text == "noon"


@WIRES
async def test_progress_of_an_answer_grows_and_is_sent_only_if_asked_for(served, mode):
    seen = []

    async def note(progress, _total, message):
        seen.append((progress, message))

    async with served(saying(answer("word " * 200))) as server, Client(server.url, mode=mode) as client:
        await client.call_tool("ask", {"question": "Count."}, progress_callback=note)
        count = len(seen)
        await client.call_tool("ask", {"question": "Count."})
    assert count > 3
    assert len(seen) == count
    assert [progress for progress, _ in seen] == sorted({progress for progress, _ in seen})
    assert "answering: " in seen[-1][1]


@WIRES
async def test_a_tool_tells_its_own_progress(served, mode):
    tools = ScriptedTools()
    tools.reports = [ToolProgress(1, 4, "first"), ToolProgress(1, 4, "again"), ToolProgress(3, 4, "third")]
    seen = []

    async def note(progress, total, message):
        seen.append((progress, total, message))

    async with served(scripted_services(tools=tools)) as server, Client(server.url, mode=mode) as client:
        result = await client.call_tool("clock", {}, progress_callback=note)
    assert result.content[0].text == "noon"
    assert seen == [(1, 4, "first"), (3, 4, "third")]


async def test_arguments_reach_the_tool(served):
    tools = ScriptedTools()
    async with served(scripted_services(tools=tools)) as server, Client(server.url) as client:
        await client.call_tool("clock", {"zone": "UTC", "tool": 1})
    assert json.loads(tools.calls[0].arguments_json) == {"zone": "UTC", "tool": 1}


@WIRES
async def test_a_failed_execution_is_a_result_with_code_message_and_next_step(served, mode):
    failure = Unavailable("no instance serves it", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)
    async with served(saying(failure)) as server, Client(server.url, mode=mode) as client:
        result = await client.call_tool("ask", {"question": "Are you there?"})
    assert result.is_error
    assert "INFERENCE_MODEL_UNAVAILABLE: no instance serves it" in result.content[0].text
    assert "next: " in result.content[0].text
    assert result.meta["pagantic/request_id"] in result.content[0].text
    assert result.structured_content["is_retryable"]


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ask", {}, "argument 'question': field required"),
        ("ask", {"question": "x", "colour": 1}, "argument 'colour'"),
        ("ask", {"question": "x", "session_id": "no spaces"}, "session_id"),
        ("ask", {"question": "x", "temperature": 9}, "temperature"),
        ("vote", {"question": "x", "schema": SCHEMA, "n": 99}, "voting.n"),
        ("extract", {"text": "x", "schema": 5}, "argument 'schema"),
    ],
)
async def test_wrong_arguments_are_a_result_in_words(served, tool, arguments, words):
    async with served() as server, Client(server.url) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert words in result.content[0].text


async def test_an_unknown_tool_is_an_error_of_the_protocol(served):
    async with served() as server, Client(server.url) as client:
        with pytest.raises(MCPError, match="no tool is named 'nothing'"):
            await client.call_tool("nothing", {})


async def test_an_orchestrator_that_is_away_is_a_result_in_words(served, unused_address):
    async with served() as server:
        server.world.address = unused_address
        async with serving_mcp(server.world) as lonely, Client(lonely.url) as client:
            result = await client.call_tool("ask", {"question": "Are you there?"})
    assert result.is_error
    assert "pagantic up" in result.content[0].text


async def test_tools_that_cannot_be_listed_are_left_out(served):
    async with served() as server, Client(server.url) as client:
        server.world.tools.failure = Unavailable("the tools service cannot be reached", code=ErrorCode.TOOL_UNAVAILABLE)
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert names == ["ask", "extract", "vote", "plan"]


async def test_a_caller_that_may_not_list_tools_is_told_so(served):
    async with served() as server, Client(server.url) as client:
        server.world.tools.failure = PermissionDenied("tenant 'acme' may not do this", code=ErrorCode.AUTH_POLICY)
        with pytest.raises(MCPError, match="may not do this"):
            await client.list_tools()


async def test_a_list_that_takes_too_long_has_the_own_tools(served, monkeypatch):
    monkeypatch.setattr(tools, "LIST_S", 0.05)
    async with served() as server, Client(server.url) as client:
        server.world.tools.list_tools = lambda _names: asyncio.Event().wait()
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert names == ["ask", "extract", "vote", "plan"]


async def test_a_header_that_lies_is_refused_whatever_another_caller_sees(served):
    schema = '{"type":"object","properties":{"zone":{"type":"string","x-mcp-header":"Zone"}}}'
    message = call("clock", {"zone": "UTC"})
    message["params"]["_meta"] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {"mcp-method": "tools/call", "mcp-name": "clock"}
    async with served() as server, Client(server.url) as client:
        registered = server.world.tools
        registered.definition = replace(registered.definition, parameters_json=schema)
        await client.list_tools()
        registered.failure = Unavailable("the tools service cannot be reached", code=ErrorCode.TOOL_UNAVAILABLE)
        assert "clock" not in [tool.name for tool in (await client.list_tools()).tools]
        registered.failure = None
        lying = await server.post(message, version=MODERN, **headers, **{"mcp-param-zone": "CET"})
        honest = await server.post(message, version=MODERN, **headers, **{"mcp-param-zone": "UTC"})
    assert (lying.status_code, honest.status_code) == (400, 200)


@pytest.fixture
def unused_address():
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


@WIRES
async def test_a_call_that_the_client_cancels_stops_its_execution(served, mode):
    inference = ScriptedInference(None)
    async with served(scripted_services(inference=inference)) as server, Client(server.url, mode=mode) as client:
        calling = asyncio.create_task(client.call_tool("ask", {"question": "Wait."}))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        calling.cancel()
        await asyncio.wait_for(inference.stopped.wait(), 60)


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_a_client_that_leaves_stops_its_execution(served, version):
    inference = ScriptedInference(None)
    async with served(scripted_services(inference=inference)) as server:
        session = await server.open_session() if version == LEGACY else ""
        message = call("ask", {"question": "Wait."})
        headers = {}
        if version == MODERN:
            message["params"]["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            headers = {"mcp-method": "tools/call", "mcp-name": "ask"}
        leaving = asyncio.create_task(server.post(message, version=version, session=session, **headers))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        leaving.cancel()
        await asyncio.wait_for(inference.stopped.wait(), 60)


async def test_a_session_that_is_deleted_stops_its_executions(served):
    inference = ScriptedInference(None)
    async with served(scripted_services(inference=inference)) as server:
        session = await server.open_session()
        calling = asyncio.create_task(server.post(call("ask", {"question": "Wait."}), session=session))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        deleted = await server.http.delete(server.url, headers=server.headers(session=session))
        await asyncio.wait_for(inference.stopped.wait(), 60)
        await calling
        assert deleted.status_code == 200
        assert server.app.sessions.count == 0


async def test_one_more_call_than_may_run_is_refused_in_words(served):
    inference = ScriptedInference(None)
    async with served(scripted_services(inference=inference), max_calls=1) as server, Client(server.url) as client:
        calling = asyncio.create_task(client.call_tool("ask", {"question": "Wait."}))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        result = await client.call_tool("ask", {"question": "Me too."})
        calling.cancel()
    assert result.is_error
    assert "at most 1 may" in result.content[0].text
