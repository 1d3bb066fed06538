"""RemoteEngine over OpenAI's HTTP API, as vLLM, SGLang, llama-server, Ollama, hosted services and pagantic speak it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
from openai import AsyncOpenAI, AsyncStream, OpenAIError

from services.inference.adapters.remote.failures import error_of
from services.inference.adapters.remote.forms import chunk_of, embeddings_of
from services.inference.adapters.remote.transport import (
    WRITE_TIMEOUT_S,
    AnswerRefused,
    ConnectionLimits,
    is_event_stream,
    open_client,
)
from services.inference.core.embedding import Vectors
from services.inference.core.remote.answers import Chunk
from services.inference.core.remote.requests import RemoteRequest

# These log every request at their lower levels, and the log must not depend on what they quote of it.
for _name in ("openai", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

# What goes wrong between here and the engine: the library, the connection, and answers of another form.
_FAILURES = (OpenAIError, httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine is, and the key that it takes; empty is none. `key_name` says where the key comes from."""

    alias: str
    url: str
    key: str = field(default="", repr=False)
    key_name: str = "api_key_env or api_key_file"
    ca_file: str = ""


class OpenAiEngine:
    """The engine behind one address. It never repeats a request: that is for callers to decide."""

    def __init__(self, endpoint: Endpoint, limits: ConnectionLimits) -> None:
        self._name = f"the engine of model {endpoint.alias!r}"
        self._key_name = endpoint.key_name
        self._client = AsyncOpenAI(
            base_url=endpoint.url,
            api_key="the transport sends the key",
            max_retries=0,
            http_client=open_client(limits, endpoint.key, endpoint.ca_file),
            timeout=httpx2.Timeout(
                connect=limits.connect_timeout_s, read=limits.silence_s, write=WRITE_TIMEOUT_S, pool=None
            ),
        )

    async def stream(self, request: RemoteRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an answer; closing the generator closes the connection."""
        try:
            opened = await self._client.post(
                request.path, body=request.body, cast_to=object, stream=True, stream_cls=AsyncStream[object]
            )
            async with opened as events:
                if not is_event_stream(opened.response.headers):
                    raise AnswerRefused("its answer is no stream of events")
                async for data in events:
                    yield chunk_of(data)
        except _FAILURES as error:
            raise error_of(error, self._name, self._key_name) from None

    async def embed(self, request: RemoteRequest) -> tuple[Vectors, int]:
        """Return a vector per text, in order, of any length, and the tokens of all texts."""
        try:
            data = await self._client.post(request.path, body=request.body, cast_to=cast("type[Any]", object))
            return embeddings_of(data)
        except _FAILURES as error:
            raise error_of(error, self._name, self._key_name) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
