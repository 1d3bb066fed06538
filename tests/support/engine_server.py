"""A server that speaks OpenAI's HTTP API over a real socket, and answers what a test writes down for it."""

import asyncio
import inspect
import json
import socket
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

DONE = "data: [DONE]\n\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}


def event(data):
    """Return an event of a stream."""
    return f"data: {json.dumps(data)}\n\n"


def choice(index=0, finish_reason=None, logprobs=None, text=None, **delta):
    """Return an event with a piece of one candidate."""
    entry = {"index": index, "finish_reason": finish_reason, "logprobs": logprobs}
    entry |= {"delta": delta} if text is None else {"text": text}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [entry]})


def usage(**fields):
    """Return the event that counts the tokens."""
    return event({"id": "c", "choices": [], "usage": USAGE | fields})


def spoken(*pieces, finish_reason="stop"):
    """Return the events of a whole answer."""
    return [choice(role="assistant", content=""), *(choice(content=piece) for piece in pieces), *ended(finish_reason)]


def ended(finish_reason="stop"):
    return [choice(finish_reason=finish_reason), usage(), DONE]


def call_piece(index=0, call_id=None, name=None, arguments=None):
    """Return an event with a piece of a tool call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"index": index, "function": function}
    if call_id is not None:
        piece |= {"id": call_id, "type": "function"}
    return choice(tool_calls=[piece])


def refusal(status, message="no", headers=None, **fields):
    """Return an answer that is an error."""
    return JSONResponse({"error": {"message": message, **fields}}, status, headers)


class Hold:
    """A place in a stream where the server waits until `release` is set, or the client leaves."""

    def __init__(self):
        self.reached, self.release, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()


class EngineServer:
    """Answers requests by `script`: parts of a stream, a response, JSON, a hold, or an async function that returns one.

    Attributes:
        asked: The path, the headers and the body of each request.
        url: The address of the API.
        pause_s: The time between two parts of a stream.
        stream_type: The content type of a stream.
    """

    def __init__(self):
        self.script = spoken("hello")
        self.asked = []
        self.url = ""
        self.pause_s = 0.0
        self.stream_type = "text/event-stream"

    @property
    def last(self):
        """The body of the last request."""
        return self.asked[-1][2]

    async def answer(self, request):
        body = json.loads(await request.body())
        self.asked.append((request.url.path, dict(request.headers), body))
        script = self.script
        if inspect.isfunction(script):
            script = await script(body)
        if isinstance(script, Response):
            return script
        if isinstance(script, dict):
            return JSONResponse(script)
        if isinstance(script, Hold):  # before any header
            await self._hold(script, request)
            return refusal(503)
        return StreamingResponse(self._stream(script), media_type=self.stream_type)

    async def _stream(self, script):
        for part in script:
            if isinstance(part, Hold):
                part.reached.set()
                try:
                    await part.release.wait()
                except asyncio.CancelledError:
                    part.left.set()
                    raise
            elif isinstance(part, Exception):
                raise part
            else:
                yield part
                await asyncio.sleep(self.pause_s)

    async def _hold(self, hold, request):
        hold.reached.set()
        while not hold.release.is_set():
            if await request.is_disconnected():
                hold.left.set()
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def engine_server():
    """Serve on a free port."""
    engine = EngineServer()
    routes = [Route(f"/v1/{path}", engine.answer, methods=["POST"]) for path in ("chat/completions", "completions")]
    routes.append(Route("/v1/embeddings", engine.answer, methods=["POST"]))
    config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server._serve([listener]))
        engine.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        try:
            yield engine
        finally:
            server.should_exit = True
            await serving
