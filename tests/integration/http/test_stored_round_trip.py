"""Generated conversations: what is stored is read back and used, and each item is deleted alone."""

import asyncio
from base64 import b64encode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagantic_common.domain.messages import Role
from tests.support.examples import examples
from tests.support.sample_images import GIF, sample_image
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

TEXTS = st.sampled_from(["", " ", "hi", "Grüße\u2028", "<|im_end|>", "{}", "a" * 300])
CALL_IDS = st.sampled_from(["c1", "toolu_a/b+c=", "id 1", "call_1|fc_2", "ü", "f" * 512])
IMAGE = {"type": "input_image", "image_url": f"data:image/gif;base64,{b64encode(sample_image(GIF)).decode()}"}
MESSAGES = st.builds(
    lambda role, text: {"type": "message", "role": role, "content": text},
    st.sampled_from(["system", "developer", "user", "assistant"]),
    TEXTS,
)
PICTURES = st.builds(
    lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}, IMAGE]}, TEXTS
)
THOUGHTS = st.builds(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}, TEXTS)


@st.composite
def calls(draw):
    """Return calls with different ids, and a result of each in any order."""
    ids = draw(st.lists(CALL_IDS, min_size=1, max_size=3, unique=True))
    asked = [{"type": "function_call", "call_id": one, "name": "clock", "arguments": "{}"} for one in ids]
    outputs = [{"type": "function_call_output", "call_id": one, "output": draw(TEXTS)} for one in ids]
    return [*asked, *draw(st.permutations(outputs))]


PARTS = st.one_of(*(kind.map(lambda item: [item]) for kind in (MESSAGES, PICTURES, THOUGHTS)), calls())
CONVERSATIONS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: [item for part in parts for item in part])


def content_of(item):
    """Return what an item says, in the form in which it was sent and in that in which it is listed."""
    kind = item["type"]
    if kind == "function_call":
        return kind, item["call_id"], item["name"], item["arguments"]
    if kind == "function_call_output":
        return kind, item["call_id"], item["output"]
    if kind == "reasoning":
        return kind, "".join(part["text"] for part in item["summary"] or item["content"])
    parts = item["content"]
    if isinstance(parts, str):
        parts = [{"text": parts}]
    said = [part.get("image_url") or part["text"] for part in parts]
    return kind, item["role"], [part for part in said if part]


def is_silent(item):
    """Tell whether an item says nothing: it may be left out, and the model does not see it."""
    return item["type"] in ("message", "reasoning") and not content_of(item)[-1]


def said_by(items):
    return [content_of(item) for item in items if not is_silent(item)]


def position_of(item):
    """Return the position of the message that an item belongs to."""
    parts = item["id"].split("_")
    return int(parts[-2] if item["type"] == "function_call" else parts[-1])


def waits(items):
    """Tell whether the last message that calls tools is the last that is shown, and lacks a result."""
    owed, caller = set(), -1
    for item in items:
        if item["type"] == "function_call":
            if position_of(item) != caller:
                owed, caller = set(), position_of(item)
            owed.add(item["call_id"])
        elif item["type"] == "function_call_output":
            owed.discard(item["call_id"])
        elif item["type"] == "message" and not is_silent(item):
            owed.clear()
    return bool(owed)


def shown(command):
    """Return the texts of a prompt beside the results of tools."""
    return [message.content for message in command.messages if message.content and message.role is not Role.TOOL]


class Talk:
    """A conversation before the gateway."""

    def __init__(self, http, inference):
        self.http = http
        self.inference = inference
        self.path = ""

    async def send(self, method, path, body=None):
        response = await self.http.request(method, path, json=body)
        await response.aread()
        return response

    async def begin(self, items):
        made = await self.send("POST", "/v1/conversations", {"items": items[:20]})
        self.path = f"/v1/conversations/{made.json()['id']}"
        if items[20:]:
            await self.send("POST", f"{self.path}/items", {"items": items[20:]})
        return await self.items()

    async def items(self):
        listed = (await self.send("GET", f"{self.path}/items?order=asc&limit=100")).json()
        assert not listed["has_more"]
        return listed["data"]

    async def holds(self, sent, order):
        items = await self.begin(sent)
        assert said_by(items) == said_by(sent)
        await self.turn(items)
        items = await self.items()
        for chosen in order:
            gone = items.pop(chosen % len(items))
            deleted = await self.send("DELETE", f"{self.path}/items/{gone['id']}")
            assert deleted.status_code == 200, deleted.text
            assert await self.items() == items
            if not items:
                break
        await self.turn(items)
        assert (await self.items())[: len(items)] == items

    async def turn(self, items):
        body = {"model": "", "input": "and now?", "conversation": self.path.rpartition("/")[2]}
        told = await self.send("POST", "/v1/responses", body)
        if waits(items):
            assert (told.status_code, "waits for the results" in told.text) == (400, True)
            return
        assert told.status_code == 200, told.text
        texts = [
            "".join(part.get("text", "") for part in item["content"]) for item in items if item["type"] == "message"
        ]
        assert shown(self.inference.commands[-1]) == [*filter(None, texts), "and now?"]


async def test_what_is_stored_is_read_back_used_and_deleted(served):
    inference = ScriptedInference()
    inference.outputs = [answer("hello")]
    async with served(scripted_services(inference)) as server:
        loop = asyncio.get_running_loop()

        @settings(max_examples=examples(200, 10), deadline=None, suppress_health_check=list(HealthCheck))
        @given(CONVERSATIONS, st.lists(st.integers(0, 30), max_size=12))
        def holds(sent, order):
            work = Talk(server.http, inference).holds(sent, order)
            asyncio.run_coroutine_threadsafe(work, loop).result(60)

        await asyncio.to_thread(holds)
