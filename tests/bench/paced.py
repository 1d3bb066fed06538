"""An engine that says one chunk after the other at a given pace, by gRPC and by OpenAI's HTTP.

`python -m tests.bench.paced CHUNKS PAUSE_S` prints its two ports. Both doors stand before the same loop, so that what
stands before either of them can be compared.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from pagantic.common.v1 import usage_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_grpc

_PROMPT_TOKENS = 10


class Paced:
    """Says `chunks` words, and pauses `pause_s` before each."""

    def __init__(self, chunks: int, pause_s: float) -> None:
        self.chunks = chunks
        self._pause_s = pause_s

    async def words(self) -> AsyncIterator[str]:
        """Say them. A word is due at its time, however late the one before was."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for _ in range(self.chunks):
            due_s += self._pause_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            yield "word "


class PacedInference(inference_grpc.InferenceServiceServicer):
    """The door for gRPC."""

    def __init__(self, paced: Paced) -> None:
        self._paced = paced

    async def Infer(
        self, request: inference_pb.InferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb.InferResponse]:
        """Answer."""
        yield inference_pb.InferResponse(started=inference_pb.InferenceStarted(prompt_tokens=_PROMPT_TOKENS))
        async for word in self._paced.words():
            yield inference_pb.InferResponse(delta=inference_pb.CandidateDelta(content=word))
        count = self._paced.chunks
        end = inference_pb.CandidateEnd(finish_reason=generation_pb2.FINISH_REASON_STOP, output_tokens=count)
        yield inference_pb.InferResponse(candidate_end=end)
        usage = usage_pb2.TokenUsage(prompt_tokens=_PROMPT_TOKENS, output_tokens=count)
        yield inference_pb.InferResponse(completed=inference_pb.InferenceCompleted(usage=usage))


def http_app(paced: Paced) -> Starlette:
    """Return the door for OpenAI's HTTP."""

    def chunk(delta: dict[str, str], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "paced", "choices": [choice]}
        return f"data: {json.dumps(body)}\n\n"

    async def events() -> AsyncIterator[str]:
        yield chunk({"role": "assistant"})
        async for word in paced.words():
            yield chunk({"content": word})
        yield chunk({}, "stop")
        yield "data: [DONE]\n\n"

    async def chat(_request: Request) -> Response:
        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


async def _serve(paced: Paced) -> None:
    server = grpc.aio.server()
    inference_grpc.add_InferenceServiceServicer_to_server(PacedInference(paced), server)  # type: ignore[no-untyped-call]
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = uvicorn.Config(http_app(paced), host="127.0.0.1", port=0, log_level="error")
    http = uvicorn.Server(config)
    serving = asyncio.create_task(http.serve())
    while not http.started:  # noqa: ASYNC110 - the library has no event for it
        await asyncio.sleep(0.01)
    print(grpc_port, http.servers[0].sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await serving


if __name__ == "__main__":
    asyncio.run(_serve(Paced(int(sys.argv[1]), float(sys.argv[2]))))
