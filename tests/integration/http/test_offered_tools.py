"""Tools over HTTP: a request offers those that it names, and its answer names them as the request did."""

import pytest

from pagantic_common.domain.messages import ToolCall
from tests.support.http_app import chat_body
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

USER = {"role": "user", "content": "What time is it?"}
RESPONSE = {"model": "", "input": "What time is it?"}
MESSAGE = {"model": "default", "max_tokens": 9, "messages": [USER]}
OLLAMA = {"model": "default", "stream": False, "messages": [USER]}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
AUTO_HINT = {"hints": {"tool_choice": {"mode": "TOOL_CHOICE_MODE_AUTO"}}}
NAMES_NO_TOOLS = [
    ("/v1/chat/completions", chat_body(tool_choice="auto")),
    ("/v1/chat/completions", chat_body(tools=[], tool_choice="auto")),
    ("/v1/chat/completions", chat_body(tool_choice=ALLOWED)),
    ("/v1/chat/completions", chat_body(function_call="auto")),
    ("/v1/chat/completions", chat_body(pagantic=AUTO_HINT)),
    ("/v1/responses", RESPONSE | {"tool_choice": "auto"}),
    ("/v1/responses", RESPONSE | {"tools": [{"type": "web_search"}], "tool_choice": "auto"}),
    ("/v1/messages", MESSAGE | {"tool_choice": {"type": "auto"}}),
    ("/api/chat", OLLAMA | {"tools": []}),
    ("/api/generate", {"model": "default", "stream": False, "prompt": "hi", "pagantic": AUTO_HINT}),
]
DEMANDS_A_CALL = [
    ("/v1/chat/completions", chat_body(tool_choice="required")),
    ("/v1/chat/completions", chat_body(tool_choice={"type": "function", "function": {"name": "clock"}})),
    ("/v1/responses", RESPONSE | {"tool_choice": "required"}),
    ("/v1/messages", MESSAGE | {"tool_choice": {"type": "any"}}),
    ("/v1/messages", MESSAGE | {"tool_choice": {"type": "tool", "name": "clock"}}),
]
SPAWN = {"type": "function", "name": "spawn", "description": "Starts an agent.", "parameters": None, "strict": False}
AGENTS = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [SPAWN]}
TOOLS = [{**SPAWN, "name": "exec"}, AGENTS, {"type": "web_search", "external_web_access": False}]
CALL = ToolCall("c1", "spawn", "{}")


@pytest.mark.parametrize(("path", "body"), NAMES_NO_TOOLS)
async def test_a_request_that_names_no_tools_is_offered_none_of_the_deployments(served, path, body):
    services = scripted_services()
    async with served(services) as server:
        response = await server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "tool_calls_made" not in response.json()["pagantic"]
    assert [command.tools for command in services.inference.commands] == [()]


@pytest.mark.parametrize(("path", "body"), DEMANDS_A_CALL)
async def test_a_demand_for_a_call_without_tools_is_refused(served, path, body):
    services = scripted_services()
    async with served(services) as server:
        response = await server.http.post(path, json=body)
    assert (response.status_code, services.inference.commands) == (400, [])
    assert "there is no tool to call" in response.json()["error"]["message"]


async def test_a_tool_of_the_deployment_is_offered_by_name(served):
    services = scripted_services()
    async with served(services) as server:
        await server.chat(tool_choice="auto", pagantic={"tools": ["clock"]})
    assert [[tool.name for tool in command.tools] for command in services.inference.commands] == [["clock"]]


async def test_a_function_of_a_namespace_is_called_answered_and_kept_by_its_names(served):
    inference = ScriptedInference(answer("", calls=[CALL]), answer("Done."))
    asked = {"model": "", "input": "Start an agent.", "tools": TOOLS, "tool_choice": "auto"}
    async with served(scripted_services(inference)) as server:
        made = (await server.http.post("/v1/responses", json=asked)).json()
        (call,) = made["output"]
        assert (call["type"], call["name"], call["namespace"]) == ("function_call", "spawn", "agents")
        assert made["tools"] == TOOLS[:2]
        assert made["pagantic"]["ignored"] == [
            "tools[].description",
            "tools[].strict",
            "tools[].tools[].strict",
            "tools[].type=web_search",
        ]
        kept = (await server.http.get(f"/v1/responses/{made['id']}")).json()
        assert (kept["output"], kept["tools"]) == (made["output"], made["tools"])
        output = {"type": "function_call_output", "call_id": "c1", "output": "started"}
        items = [{"role": "user", "content": "Start an agent."}, call, output]
        response = await server.http.post("/v1/responses", json={**asked, "input": items})
    assert response.json()["output"][0]["content"][0]["text"] == "Done."
    assert [tool.name for tool in inference.commands[0].tools] == ["exec", "spawn"]
    assert [message.name for message in inference.commands[1].messages] == ["", "", "spawn"]


async def test_a_stream_has_the_names_of_a_function_of_a_namespace(served):
    inference = ScriptedInference(answer("", calls=[CALL]))
    asked = {"model": "", "input": "Start an agent.", "tools": TOOLS, "stream": True}
    async with served(scripted_services(inference)) as server:
        text = (await server.http.post("/v1/responses", json=asked)).text
    assert (
        text.count('"namespace": "agents"') + text.count('"namespace":"agents"') == 3
    )  # added, done, and the response


async def test_a_thread_is_refused_so_that_anthropics_clients_send_all_messages(served):
    async with served() as server:
        response = await server.http.post("/v1/messages", json=MESSAGE | {"thread": {"type": "create"}})
    assert response.status_code == 400
    assert response.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


async def test_a_system_message_among_the_messages_keeps_its_place(served):
    services = scripted_services()
    messages = [USER, {"role": "system", "content": "Be brief."}, USER]
    async with served(services) as server:
        response = await server.http.post("/v1/messages?beta=true", json=MESSAGE | {"messages": messages})
    assert response.status_code == 200, response.text
    (command,) = services.inference.commands
    assert [message.role.value.lower() for message in command.messages] == ["user", "system", "user"]


async def test_the_response_object_has_formats_as_they_were_sent(served):
    async with served(scripted_services(ScriptedInference(answer('{"a": 1}')))) as server:
        for sent in ({"type": "json_object"}, {"type": "json_schema", "name": "n", "schema": {}, "strict": False}):
            made = (await server.http.post("/v1/responses", json=RESPONSE | {"text": {"format": sent}})).json()
            kept = (await server.http.get(f"/v1/responses/{made['id']}")).json()
            assert made["text"] == kept["text"] == {"format": sent}
