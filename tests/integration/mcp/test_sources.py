"""Collections as resources and prompt templates as prompts, on both wires."""

import json

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from services.orchestrator.adapters.operator_files import PromptFolder
from tests.support.mcp_app import MODERN
from tests.support.scripted_services import scripted_services

WIRES = pytest.mark.parametrize("mode", ["legacy", MODERN])


@pytest.fixture
def prompts(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    folder.joinpath("tutor.txt").write_text("Teach {{ subject }} briefly.\n")
    folder.joinpath("host.txt").write_text("Greet {{ session.name }}.\n")
    return scripted_services(prompts=PromptFolder(folder))


@WIRES
async def test_collections_are_listed_and_described(served, mode):
    async with served() as server, Client(server.url, mode=mode) as client:
        (resource,) = (await client.list_resources()).resources
        (template,) = (await client.list_resource_templates()).resource_templates
        (contents,) = (await client.read_resource(resource.uri)).contents
    assert (resource.name, resource.uri) == ("notes", "pagantic://collections/notes")
    assert template.uri_template == "pagantic://collections/{name}{?query}"
    assert json.loads(contents.text)["document_count"] == 1


@WIRES
async def test_a_query_reads_the_passages_that_fit(served, mode):
    async with served() as server, Client(server.url, mode=mode) as client:
        (contents,) = (await client.read_resource("pagantic://collections/notes?query=which%20lamp%3F")).contents
        (asked,) = server.world.collections.retrieved
    assert contents.text == "[1] (house.txt): The lamp is green."
    assert (asked.query, asked.policy.collection) == ("which lamp?", "notes")


@WIRES
@pytest.mark.parametrize(
    "uri",
    [
        "pagantic://collections/nothing",
        "pagantic://collections/nothing?query=x",
        "pagantic://collections/",
        "pagantic://collections/a/b",
        "pagantic://executions/notes",
        "file:///etc/passwd",
        "pagantic://[",
    ],
)
async def test_an_unknown_resource_is_an_error_that_names_it(served, mode, uri):
    async with served() as server, Client(server.url, mode=mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
    assert refused.value.code == (-32602 if mode == MODERN else -32002)
    assert refused.value.data["uri"] == uri


@WIRES
async def test_templates_are_listed_with_their_variables_and_rendered(served, prompts, mode):
    async with served(prompts) as server, Client(server.url, mode=mode) as client:
        host, tutor = (await client.list_prompts()).prompts
        rendered = await client.get_prompt("tutor", {"subject": "logic"})
    assert [(one.name, one.required) for one in tutor.arguments] == [("subject", True)]
    assert [(one.name, one.required) for one in host.arguments] == [("session_id", False)]
    assert rendered.messages[0].content.text == "Teach logic briefly."


async def test_a_template_reads_values_of_a_conversation(served, prompts):
    async with served(prompts) as server, Client(server.url) as client:
        await server.world.stub.UpdateSession(session_values("house", name='"Ana"'))
        rendered = await client.get_prompt("host", {"session_id": "house"})
    assert rendered.messages[0].content.text == "Greet Ana."


def session_values(session_id, **values):

    return pb.UpdateSessionRequest(session_id=session_id, state_json=values)


@pytest.mark.parametrize(("name", "arguments"), [("nothing", {}), ("tutor", {}), ("tutor", {"colour": "x"})])
async def test_a_wrong_prompt_is_an_error_in_words(served, prompts, name, arguments):
    async with served(prompts) as server, Client(server.url) as client:
        with pytest.raises(MCPError, match=r"prompt\.template") as refused:
            await client.get_prompt(name, arguments)
    assert refused.value.code == -32602
