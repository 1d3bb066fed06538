"""Responses and conversations over HTTP, with OpenAI's own client: made, kept, followed, and gone on from."""

import asyncio
import json
from dataclasses import replace
from hashlib import sha256

import openai
import pytest

from pagantic.common.v1 import message_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.messages import ToolCall
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

CALL = ToolCall("c1", "clock", '{"zone":"UTC"}')
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object"}, "strict": True}


class Halting(ScriptedInference):
    """Says a word, waits for a sign, and says another."""

    def __init__(self):
        super().__init__(answer("one two"))
        self.sign = asyncio.Event()

    async def infer(self, command, hints):
        async for part in super().infer(command, hints):
            yield part
            if part.content == "one ":
                self.waiting.set()
                try:
                    await self.sign.wait()
                except asyncio.CancelledError:
                    self.stopped.set()
                    raise


def client_of(server):
    return openai.AsyncOpenAI(base_url=str(server.http.base_url).rstrip("/") + "/v1", api_key="none", max_retries=0)


async def read(stream):
    return [event async for event in stream]


async def test_a_response_is_made_kept_and_forgotten(served):
    async with served() as server, client_of(server) as client:
        fields = {"metadata": {"topic": "greeting"}, "instructions": "Be kind."}
        made = await client.responses.create(model="", input="hi", **fields)
        assert (made.output_text, made.status, made.metadata) == ("hello", "completed", {"topic": "greeting"})
        found = await client.responses.retrieve(made.id)
        assert found.to_dict() == made.to_dict()
        items = await client.responses.input_items.list(made.id)
        assert [item.content[0].text for item in items.data] == ["hi"]
        await client.responses.delete(made.id)
        for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match="there is no response"):
                await ask(made.id)


async def test_a_response_that_is_not_stored_is_not_found(served):
    async with served() as server, client_of(server) as client:
        made = await client.responses.create(model="", input="hi", store=False)
        chat = (await server.chat()).json()
        for unknown in (made.id, "resp_", "other", f"resp_{chat['pagantic']['request_id']}"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(unknown)


async def test_a_response_goes_on_from_the_one_before(served):
    inference = ScriptedInference(answer("", calls=[CALL]), answer("noon"), answer("really"))
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        first = await client.responses.create(model="", input="What time is it?", tools=[CLOCK])
        [call] = first.output
        assert (call.type, call.name, call.arguments) == ("function_call", "clock", '{"zone":"UTC"}')
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}
        second = await client.responses.create(model="", input=[output], previous_response_id=first.id)
        third = await client.responses.create(model="", input="Sure?", previous_response_id=second.id)
        assert (second.output_text, third.output_text, third.previous_response_id) == ("noon", "really", second.id)
        said = [message.content for message in inference.commands[-1].messages]
        assert said == ["What time is it?", "", "12:00", "noon", "Sure?"]
        items = await client.responses.input_items.list(third.id, order="asc")
        kinds = ["message", "function_call", "function_call_output", "message", "message"]
        assert [item.type for item in items.data] == kinds


async def test_a_stream_has_the_events_of_its_response(served):
    inference = ScriptedInference(answer("hello", calls=[CALL]))
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        events = await read(await client.responses.create(model="", input="hi", stream=True, tools=[CLOCK]))
        found = await client.responses.retrieve(events[-1].response.id)
    assert events[-1].type == "response.completed"
    assert events[-1].response.to_dict() == found.to_dict()
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "hello"


async def test_the_background_goes_on_and_its_stream_is_taken_up_anywhere(served):
    inference = Halting()
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        stream = await client.responses.create(model="", input="hi", stream=True, background=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        response_id, last = seen[0].response.id, seen[-1].sequence_number
        assert (await client.responses.retrieve(response_id)).status == "in_progress"
        following = [
            asyncio.create_task(read(await client.responses.retrieve(response_id, stream=True, starting_after=last)))
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)
        inference.sign.set()
        for rest in await asyncio.gather(*following):
            whole = seen + rest
            text = [event.delta for event in whole if event.type == "response.output_text.delta"]
            assert text == ["one ", "two"]
            numbers = [event.sequence_number for event in whole]
            assert numbers == sorted(set(numbers))
            assert rest[-1].response.output_text == "one two"
        again = await read(await client.responses.retrieve(response_id, stream=True))
        assert [event.type for event in again if not event.type.endswith("delta")] == [
            event.type for event in whole if not event.type.endswith("delta")
        ]
        assert len(inference.commands) == 1


async def test_a_response_in_the_background_is_polled_and_cancelled(served):
    inference = Halting()
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        made = await client.responses.create(model="", input="hi", background=True)
        assert made.status == "queued"
        await inference.waiting.wait()
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        await asyncio.wait_for(inference.stopped.wait(), 60)
        assert (await client.responses.retrieve(made.id)).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="store is false"):
            await client.responses.create(model="", input="hi", background=True, store=False)


async def test_a_client_that_leaves_a_stream_stops_what_is_not_in_the_background(served):
    inference = Halting()
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        stream = await client.responses.create(model="", input="hi", stream=True)
        await inference.waiting.wait()
        await stream.close()
        await asyncio.wait_for(inference.stopped.wait(), 60)


async def test_a_conversation_keeps_what_is_said(served):
    inference = ScriptedInference(answer("hello Ana"))
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        item = {"type": "message", "role": "user", "content": "I am Ana."}
        talk = await client.conversations.create(items=[item], metadata={"a": "b"})
        made = await client.responses.create(model="", input="Who am I?", conversation=talk.id)
        assert (made.output_text, made.conversation.id) == ("hello Ana", talk.id)
        assert [message.content for message in inference.commands[-1].messages] == ["I am Ana.", "Who am I?"]
        added = await client.conversations.items.create(talk.id, items=[{**item, "content": "Thanks."}])
        items = await client.conversations.items.list(talk.id, order="asc")
        assert [one.content[0].text for one in items.data] == ["I am Ana.", "Who am I?", "hello Ana", "Thanks."]
        assert items.data[-1] == added.data[0]
        last = await client.conversations.items.list(talk.id, limit=1)
        assert (last.data, last.has_more) == (added.data, True)
        assert await client.conversations.items.retrieve(added.data[0].id, conversation_id=talk.id) == added.data[0]
        changed = await client.conversations.update(talk.id, metadata={"c": "d"})
        assert changed == await client.conversations.retrieve(talk.id)
        assert changed.metadata == {"c": "d"}
        assert await client.conversations.items.delete(added.data[0].id, conversation_id=talk.id) == changed
        assert len((await client.conversations.items.list(talk.id)).data) == 3
        assert (await client.conversations.delete(talk.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(talk.id)


EMPTY_ITEMS = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]},
    {"type": "message", "role": "user", "content": ""},
    {"type": "message", "role": "developer", "content": ""},
    {"type": "reasoning", "summary": []},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
]


@pytest.mark.parametrize("item", EMPTY_ITEMS)
async def test_an_empty_item_is_stored_or_left_out_and_no_turn_fails_for_it(served, item):
    inference = ScriptedInference()
    inference.outputs = [answer("hello")]
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        talk = await client.conversations.create()
        added = await client.conversations.items.create(talk.id, items=[item])
        assert added.data == (await client.conversations.items.list(talk.id)).data
        for text in ("Hi", "Hello again"):
            await client.responses.create(model="", input=text, conversation=talk.id)
        assert [message.content for message in inference.commands[1].messages] == ["Hi", "hello", "Hello again"]
        made = await client.responses.create(model="", input=[item, {"role": "user", "content": "Hi"}])
        again = await client.responses.create(model="", input="so?", previous_response_id=made.id)
        assert [message.content for message in inference.commands[-1].messages] == ["Hi", "hello", "so?"]
        with pytest.raises(openai.BadRequestError, match=r"is empty|input is missing|is assistant's"):
            await client.responses.create(model="", input=[item], previous_response_id=again.id)


@pytest.mark.parametrize("call_id", ["call_1|fc_2", "toolu_a/b+c=", "a b", "f" * 200])
async def test_calls_have_ids_of_any_system(served, call_id):
    inference = ScriptedInference()
    inference.outputs = [answer("hello")]
    call = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": call_id, "output": "1"}
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        talk = await client.conversations.create()
        await client.conversations.items.create(talk.id, items=[call])
        with pytest.raises(openai.BadRequestError, match="waits for the results of calls"):
            await client.responses.create(model="", input="Hi", conversation=talk.id)
        await client.responses.create(model="", input=[result], conversation=talk.id)
        items = await client.conversations.items.list(talk.id, order="asc")
        assert [getattr(item, "call_id", "") for item in items.data] == [call_id, call_id, ""]
        with pytest.raises(openai.BadRequestError, match="1 to 512 printable characters"):
            await client.conversations.items.create(talk.id, items=[call | {"call_id": "a\n"}])


async def test_roles_are_those_that_were_sent(served):
    items = [{"role": role, "content": "hi"} for role in ("developer", "system", "user", "system")]
    async with served() as server, client_of(server) as client:
        talk = await client.conversations.create(items=items)
        listed = await client.conversations.items.list(talk.id, order="asc")
        assert [item.role for item in listed.data] == ["developer", "system", "user", "system"]
        made = await client.responses.create(model="", input=items)
        sent = await client.responses.input_items.list(made.id, order="asc")
        assert [item.role for item in sent.data] == ["developer", "system", "user", "system"]
        async with AsyncClient(server.world.address) as stored:
            messages = (await stored.get_session(talk.id)).messages
            turn = (await stored.get_execution(made.id.removeprefix("resp_"))).request.messages[-1]
    assert (messages[-1].role, turn.role, turn.said_as) == (message_pb2.ROLE_SYSTEM, message_pb2.ROLE_USER, "system")


async def test_items_are_deleted_one_by_one_and_the_others_keep_their_ids(served):
    inference = ScriptedInference(answer("hello"))
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": "two"},
        call,
        call | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {"role": "user", "content": "three"},
    ]
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        talk = await client.conversations.create(items=items)
        listed = (await client.conversations.items.list(talk.id, order="asc")).data
        left = list(listed)
        for index in (3, 0, 1, 4):
            gone = left.pop(index)
            assert (await client.conversations.items.delete(gone.id, conversation_id=talk.id)).id == talk.id
            assert (await client.conversations.items.list(talk.id, order="asc")).data == left
            for ask in (client.conversations.items.delete, client.conversations.items.retrieve):
                with pytest.raises(openai.NotFoundError, match="there is no item"):
                    await ask(gone.id, conversation_id=talk.id)
        assert [item.type for item in left] == ["reasoning", "function_call", *["function_call_output"] * 2]
        await client.conversations.items.delete(left[-1].id, conversation_id=talk.id)
        with pytest.raises(openai.BadRequestError, match="waits for the results of calls 'c2'"):
            await client.responses.create(model="", input="Hi", conversation=talk.id)
        await client.conversations.items.delete(left[1].id, conversation_id=talk.id)
        await client.responses.create(model="", input="Hi", conversation=talk.id)
        assert [message.content for message in inference.commands[-1].messages] == ["Hi"]
        with pytest.raises(openai.NotFoundError, match="there is no item"):
            await client.conversations.items.delete(f"msg_{talk.id}_99", conversation_id=talk.id)
        with pytest.raises(openai.NotFoundError, match="there is no conversation"):
            await client.conversations.items.delete("msg_none_0", conversation_id="none")


async def test_a_long_conversation_is_listed_in_pages(served):
    async with served() as server, client_of(server) as client, AsyncClient(server.world.address) as stored:
        talk = await client.conversations.create()
        said = [message_pb2.Message(role=message_pb2.ROLE_USER, content=str(number)) for number in range(1050)]
        for start in range(0, len(said), 100):
            await stored.update_session(talk.id, {}, appended=said[start : start + 100])
        gone = message_pb2.Message(role=message_pb2.ROLE_USER, removed=True)
        await stored.update_session(talk.id, {}, replaced=dict.fromkeys(range(1000, 1050), gone))
        for order in ("asc", "desc"):
            pages = [
                page
                async for page in (await client.conversations.items.list(talk.id, order=order, limit=100)).iter_pages()
            ]
            texts = [item.content[0].text for page in pages for item in page.data]
            assert texts == [str(number) for number in (range(1000) if order == "asc" else reversed(range(1000)))]
            assert [len(page.data) for page in pages] == [100] * 10
        with pytest.raises(openai.NotFoundError, match="there is no item"):
            await client.conversations.items.list(talk.id, after=f"msg_{talk.id}_1001")
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        await client.conversations.items.create(talk.id, items=[call])
        for start in range(0, len(said), 100):
            await stored.update_session(talk.id, {}, appended=said[start : start + 100])
        result = {"type": "function_call_output", "call_id": "c1", "output": "1"}
        assert (await client.conversations.items.create(talk.id, items=[result])).data[0].call_id == "c1"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_reference_stands_for_a_stored_item(served, streams):
    inference = ScriptedInference(replace(answer("a moment", [CALL]), reasoning="hm"), answer("noon"))
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        made = await client.responses.create(model="", input="What time is it?", tools=[CLOCK], stream=streams)
        if streams:
            made = (await read(made))[-1].response
        asked = (await client.responses.input_items.list(made.id)).data[0]
        talk = await client.conversations.create(items=[{"role": "developer", "content": "Be brief."}])
        told = (await client.conversations.items.list(talk.id)).data[0]
        references = [{"type": "item_reference", "id": item.id} for item in (told, asked, *made.output)]
        output = {"type": "function_call_output", "call_id": CALL.id, "output": "12:00"}
        second = await client.responses.create(model="", input=[*references, output])
        assert second.output_text == "noon"
        [system, user, assistant, result] = inference.commands[-1].messages
        assert [message.content for message in (system, user, result)] == ["Be brief.", "What time is it?", "12:00"]
        assert (assistant.content, assistant.reasoning, assistant.tool_calls) == ("a moment", "hm", (CALL,))
        counted = await client.responses.input_tokens.count(model="", input=[*references, output])
        assert counted.input_tokens
        added = await client.conversations.items.create(talk.id, items=references[:2])
        assert [item.role for item in added.data] == ["developer", "user"]


@pytest.mark.parametrize("item_id", ["", "msg_1", "rs_x_1", "fc_conv_1_2_0123abcd", "msg_a b", "msg_\u00e9", None])
async def test_a_reference_to_an_unknown_item_is_the_clients_fault(served, item_id):
    async with served() as server:
        items = [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": item_id}]
        refused = await server.http.post("/v1/responses", content=json.dumps({"model": "", "input": items}))
    assert refused.status_code == 400
    assert "input[1].id is" in refused.json()["error"]["message"]


async def test_references_to_very_many_responses_are_refused(served):
    references = [{"type": "item_reference", "id": f"rs_{number}"} for number in range(300)]
    async with served() as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError, match="more than 256 responses"):
            await client.responses.create(model="", input=references)


async def test_a_compaction_stands_for_the_conversation(served):
    inference = ScriptedInference(answer("They like red."), answer("red"))
    async with served(scripted_services(inference)) as server, client_of(server) as client:
        compacted = await client.responses.compact(model="", input="I like red.")
        [item] = compacted.output
        question = {"role": "user", "content": "What do I like?"}
        made = await client.responses.create(model="", input=[item.to_dict(), question])
        assert made.output_text == "red"
        assert "They like red." in inference.commands[-1].messages[0].content


async def test_a_method_that_a_path_does_not_have_names_those_that_it_has(served):
    async with served() as server:
        refused = await server.http.put("/v1/responses/resp_1")
    assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE, GET")


@pytest.fixture
def session_pages(monkeypatch):
    """Return the list of all pages of sessions that the gateway reads."""
    pages = []
    get = AsyncClient.get_session_page

    async def counted(self, request):
        page = await get(self, request)
        pages.append(page)
        return page

    monkeypatch.setattr(AsyncClient, "get_session_page", counted)
    return pages


async def append_messages(server, name, count, size=1):
    """Append numbered messages of a size to a session, each with a call."""
    step = min(100, 1_000_000 // size)
    async with AsyncClient(server.world.address) as client:
        for start in range(0, count, step):
            messages = [
                message_pb2.Message(
                    role=message_pb2.ROLE_ASSISTANT,
                    content=f"{number}".ljust(size),
                    tool_calls=[message_pb2.ToolCall(id=f"c{number}", name="f", arguments_json="{}")],
                )
                for number in range(start, min(start + step, count))
            ]
            await client.update_session(name, {}, appended=messages)


@pytest.mark.parametrize(("count", "size"), [(330, 1), (6, 600_000)])
async def test_items_of_a_long_conversation_are_read_page_by_page(served, session_pages, count, size):
    async with served() as server, client_of(server) as client:
        await append_messages(server, "s_1_2", count, size)
        for order in ("asc", "desc"):
            session_pages.clear()
            items = client.conversations.items
            ids = [one.id async for one in items.list("s_1_2", order=order, limit=100)]
            endings = {number: sha256(f"c{number}".encode()).hexdigest()[:8] for number in range(count)}
            expected = [
                item
                for number, ending in endings.items()
                for item in (f"msg_s_1_2_{number}", f"fc_s_1_2_{number}_{ending}")
            ]
            assert ids == (expected if order == "asc" else expected[::-1])
            read = sum(len(page.messages) for page in session_pages)
            assert read <= 2.2 * count + 200, "each page reads what it shows, and not the whole conversation"
        for name in (ids[0], ids[7], ids[-1]):
            session_pages.clear()
            assert (await items.retrieve(name, conversation_id="s_1_2")).id == name
            assert [len(page.messages) for page in session_pages] == [1]
        for name in ("msg_s_1_2_99999", "fc_s_1_2_0_9", "msg_s_1_2", "x", "msg_s_1_5", "fc_s_1_2_3"):
            with pytest.raises(openai.NotFoundError):
                await items.retrieve(name, conversation_id="s_1_2")
            with pytest.raises(openai.NotFoundError):
                await items.list("s_1_2", after=name)


async def test_a_page_of_large_items_ends_before_it_fills_the_memory(served, session_pages):
    async with served() as server:
        await append_messages(server, "s", 12, 900_000)
        for order, first in (("asc", "msg_s_0"), ("desc", "fc_s_11_")):
            query = {"order": order, "limit": "100"}
            answer = await server.http.get("/v1/conversations/s/items", params=query)
            page = answer.json()
            assert page["data"][0]["id"].startswith(first)
            assert (page["has_more"], page["last_id"]) == (True, page["data"][-1]["id"])
            assert len(answer.content) < 4_000_000
            assert len(session_pages) <= 4, "at most one page is read in vain"
            session_pages.clear()
        async with client_of(server) as client:
            ids = [item.id async for item in client.conversations.items.list("s", limit=100, order="asc")]
            assert [name.rsplit("_", 1)[0] for name in ids[1::2]] == [f"fc_s_{number}" for number in range(12)]
            assert ids[::2] == [f"msg_s_{number}" for number in range(12)]


async def test_references_to_very_many_bytes_are_refused(served):
    async with served() as server:
        await append_messages(server, "s", 12, 900_000)
        for numbers in ([0] * 1000, range(12)):
            items = [{"type": "item_reference", "id": f"msg_s_{number}"} for number in numbers]
            refused = await server.http.post("/v1/responses", json={"model": "", "input": items})
            assert refused.status_code == 400
            assert "input refers to items of more than 4194304 bytes" in refused.json()["error"]["message"]


async def test_a_long_conversation_is_found_changed_and_continued_without_its_messages(served, session_pages):
    async with served() as server, client_of(server) as client:
        await append_messages(server, "s", 300)
        await client.conversations.retrieve("s")
        await client.conversations.update("s", metadata={"a": "b"})
        output = {"type": "function_call_output", "call_id": "c299", "output": "42"}
        await client.conversations.items.create("s", items=[output])
        made = await client.responses.create(model="", input="And?", conversation="s")
        assert made.output_text == "hello"
        assert sum(len(page.messages) for page in session_pages) <= 2 * 200 + 2
        await client.conversations.delete("s")
