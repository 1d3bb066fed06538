"""Answers of the gateway are as OpenAI's public document describes them."""

import pytest

from pagantic_common.domain.messages import ToolCall
from tests.integration.http.test_responses import CLOCK, client_of
from tests.support.http_app import data_in
from tests.support.openai_document import as_documented, problems_of
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

CALL = ToolCall("c1", "clock", '{"zone":"UTC"}')
JSON_OBJECT = {"text": {"format": {"type": "json_object"}}}
CHAT_CLOCK = {"type": "function", "function": {"name": "clock"}}


def of_document(told):
    """Return an object without what is our own."""
    return {name: value for name, value in told.items() if name != "pagantic"}


@pytest.fixture
def services():
    return scripted_services(ScriptedInference(answer("hello", calls=[CALL])))


@pytest.mark.parametrize("fields", [{}, JSON_OBJECT, {"tools": [CLOCK], "temperature": 0}])
async def test_responses_and_their_items(served, fields):
    async with served() as server, client_of(server) as client:
        made = await client.responses.create(model="", input="hi", **fields)
        items = (await server.http.get(f"/v1/responses/{made.id}/input_items")).json()
    assert problems_of(of_document(made.to_dict()), "Response") == []
    assert problems_of(items, "ResponseItemList") == []


async def test_the_events_of_a_response(served, services):
    async with served(services) as server, client_of(server) as client:
        stream = await client.responses.create(model="", input="hi", stream=True, tools=[CLOCK])
        events = [event.to_dict() async for event in stream]
    assert len(events) > 10
    assert [problem for event in events for problem in problems_of(as_documented(event), "ResponseStreamEvent")] == []


async def test_conversations_and_compactions(served):
    async with served() as server, client_of(server) as client:
        talk = await client.conversations.create(items=[{"role": "user", "content": "hi"}])
        items = (await server.http.get(f"/v1/conversations/{talk.id}/items")).json()
        compacted = await client.responses.compact(model="", input="I like red.")
    assert problems_of(talk.to_dict(), "ConversationResource") == []
    assert problems_of(items, "ConversationItemList") == []
    assert problems_of(compacted.to_dict(), "CompactResource") == []


async def test_chats_their_chunks_and_models(served, services):
    async with served(services) as server:
        made = (await server.chat(store=True, tools=[CHAT_CLOCK], n=2)).json()
        stored = (await server.http.get(f"/v1/chat/completions/{made['id']}")).json()
        models = (await server.http.get("/v1/models")).json()
        async with server.chat_stream(tools=[CHAT_CLOCK], stream_options={"include_usage": True}) as response:
            chunks = data_in((await response.aread()).decode())
    for told in (made, stored):
        assert problems_of(of_document(told), "CreateChatCompletionResponse") == []
    assert len(chunks) > 3
    chunked = [of_document(chunk) for chunk in chunks]
    assert [one for chunk in chunked for one in problems_of(chunk, "CreateChatCompletionStreamResponse")] == []
    assert [one for model in models["data"] for one in problems_of(of_document(model), "Model")] == []
