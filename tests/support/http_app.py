"""The HTTP gateway over a free port, in front of a real orchestrator whose services do what a test says."""

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from gateway.http.app import HttpApp
from gateway.http.program import PATH, open_app
from gateway.http.settings import HttpSettings
from gateway.mcp.http.app import PATH as MCP_PATH
from tests.support.http_document import check_answer
from tests.support.mcp_app import Deployment, serving_app

DONE = "[DONE]"


@dataclass
class ServedHttp:
    """A gateway over HTTP, and what runs behind it."""

    app: HttpApp
    world: Deployment
    http: httpx.AsyncClient = field(repr=False)

    async def chat(self, text="hi", *, headers=None, **fields):
        """Ask for a chat completion, and return the response."""
        return await self.http.post(f"{PATH}/chat/completions", json=chat_body(text, **fields), headers=headers)

    def chat_stream(self, text="hi", **fields):
        """Open the stream of a chat completion."""
        return self.http.stream("POST", f"{PATH}/chat/completions", json=chat_body(text, stream=True, **fields))


def chat_body(text="hi", **fields):
    """Return the body of a chat completion; `fields` may have the messages, too."""
    return {"model": "", "messages": [{"role": "user", "content": text}], **fields}


def data_in(text):
    """Return the data of server-sent events, the last of which says that they are all."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data.pop() == DONE
    return [json.loads(one) for one in data]


def text_in(chunks, index=0):
    """Return the text of a choice in the chunks of a stream."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@asynccontextmanager
async def serving_http(world, **fields):
    """Serve a deployment to clients over HTTP; every answer must be as the gateway's document says."""
    settings = HttpSettings(drain_s=0, **fields)
    async with (
        open_app(settings, world.address) as app,
        serving_app(app, settings) as url,
        httpx.AsyncClient(
            base_url=url.removesuffix(MCP_PATH), timeout=30, event_hooks={"response": [check_answer]}
        ) as http,
    ):
        yield ServedHttp(app, world, http)
