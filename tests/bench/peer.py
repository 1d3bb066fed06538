"""The other side: llama-server, or a server with OpenAI's HTTP interface; which one is found out by asking it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from tests.bench.http_client import HttpClient
from tests.bench.load import MIN_P, TOP_K, TOP_P, Answer, BenchError, Query

_HTTP_OK = 200
_COUNTER = b"llamacpp:prompt_tokens_total "


async def find_peer(url: str, end_tokens: Sequence[int]) -> LlamaServer | OpenAiServer:
    """Return the side that talks to `url`; `end_tokens` are those that answers of a full length do without."""
    client = HttpClient(url)
    status, body = await client.get("/props")
    if status == _HTTP_OK and b"total_slots" in body:
        return LlamaServer(client)
    status, body = await client.get("/v1/models")
    if status == _HTTP_OK:
        return OpenAiServer(client, json.loads(body)["data"][0]["id"], end_tokens)
    raise BenchError(f"{url} is neither a llama-server nor a server with OpenAI's interface")


class LlamaServer:
    """llama.cpp's server by its own /completion, which costs it less than its chat interface."""

    name = "llama-server"

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._rendered: dict[tuple[tuple[str, str], ...], str] = {}

    async def prepare(self, queries: Sequence[Query]) -> None:
        """Have it render the prompts, so that both sides see the same text by the model's own template."""
        for messages in {query.messages for query in queries if query.messages} - self._rendered.keys():
            reply = await self._client.post("/apply-template", {"messages": _openai_messages(messages)})
            self._rendered[messages] = reply["prompt"]

    async def computed_prompt_tokens(self) -> int | None:
        """Nothing: each answer tells."""
        return None

    async def ask(self, query: Query) -> Answer:
        """Stream one completion; several candidates are one request, of which it computes the prompt once."""
        payload = self._payload(query)
        pieces: list[list[str]] = [[] for _ in range(query.candidates)]
        last: dict[int, Any] = {}
        first_s = 0.0
        sent_s = time.perf_counter()
        async for event in self._client.stream("/completion", payload):
            if "error" in event:
                raise BenchError(f"llama-server: {event['error']}")
            index = event.get("index", 0)
            if event["content"]:
                first_s = first_s or time.perf_counter()
                pieces[index].append(event["content"])
            if event["stop"]:
                last[index] = event["timings"]
        ended_s = time.perf_counter()
        if len(last) != query.candidates:
            raise BenchError(f"llama-server ended {len(last)} of {query.candidates} candidates")
        return Answer(
            sent_s=sent_s,
            first_s=first_s or ended_s,
            ended_s=ended_s,
            texts=tuple("".join(one) for one in pieces),
            output_tokens=sum(timings["predicted_n"] for timings in last.values()),
            prompt_tokens=last[0]["cache_n"] + last[0]["prompt_n"],
            computed_prompt_tokens=last[0]["prompt_n"],
        )

    def _payload(self, query: Query) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "prompt": self._rendered[query.messages] if query.messages else query.text,
            "n_predict": query.max_tokens,
            "temperature": query.temperature,
            "top_k": TOP_K,
            "top_p": TOP_P,
            "min_p": MIN_P,
            "seed": query.seed,
            "cache_prompt": True,
            "ignore_eos": query.is_full_length,
            "stream": True,
        }
        if query.candidates > 1:
            payload["n"] = query.candidates
        if query.schema is not None:
            payload["json_schema"] = query.schema
        return payload


class OpenAiServer:
    """A server with /v1/chat/completions and /v1/completions, such as llama-cpp-python's example server."""

    def __init__(self, client: HttpClient, model: str, end_tokens: Sequence[int]) -> None:
        self.name = "openai-like"
        self._client = client
        self._model = model
        self._bias = {str(token): -100.0 for token in end_tokens}

    async def prepare(self, queries: Sequence[Query]) -> None:
        """Nothing: it renders prompts itself."""

    async def computed_prompt_tokens(self) -> int | None:
        """Return the counter of its metrics, where it has llama.cpp's."""
        status, body = await self._client.get("/metrics")
        lines = [line for line in body.splitlines() if line.startswith(_COUNTER)]
        return int(float(lines[0].split()[1])) if status == _HTTP_OK and lines else None

    async def ask(self, query: Query) -> Answer:
        """Stream one answer; several candidates are one reply in one piece, for streams have one candidate."""
        is_chat = bool(query.messages)
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        payload = self._payload(query)
        sent_s = time.perf_counter()
        if query.candidates > 1:
            reply = await self._client.post(path, payload)
            ended_s = time.perf_counter()
            texts = tuple(_text(choice, "message", is_chat=is_chat) for choice in reply["choices"])
            return _answer((sent_s, ended_s, ended_s), texts, query, reply.get("usage"))
        pieces = []
        first_s = 0.0
        usage = None
        async for event in self._client.stream(path, payload | {"stream": True}):
            if "error" in event:
                raise BenchError(f"the peer: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if text := _text(choice, "delta", is_chat=is_chat):
                    first_s = first_s or time.perf_counter()
                    pieces.append(text)
        ended_s = time.perf_counter()
        return _answer((sent_s, first_s or ended_s, ended_s), ("".join(pieces),), query, usage)

    def _payload(self, query: Query) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "model": self._model,
            "max_tokens": query.max_tokens,
            "temperature": query.temperature,
            "top_k": TOP_K,
            "top_p": TOP_P,
            "min_p": MIN_P,
            "seed": query.seed,
            "n": query.candidates,
        }
        if query.is_full_length:
            payload["logit_bias"] = self._bias
        if query.schema is not None:
            schema = {"name": "answer", "schema": query.schema}
            payload["response_format"] = {"type": "json_schema", "json_schema": schema}
        if query.messages:
            payload["messages"] = _openai_messages(query.messages)
        else:
            payload["prompt"] = query.text
        return payload


def _openai_messages(messages: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def _text(choice: Any, key: str, *, is_chat: bool) -> str:
    return str((choice[key].get("content") if is_chat else choice.get("text")) or "")


def _answer(times_s: tuple[float, float, float], texts: tuple[str, ...], query: Query, usage: Any) -> Answer:
    output_tokens = query.max_tokens * query.candidates if query.is_full_length else None
    return Answer(
        *times_s,
        texts=texts,
        output_tokens=usage["completion_tokens"] if usage else output_tokens,
        prompt_tokens=usage["prompt_tokens"] if usage else None,
        computed_prompt_tokens=None,
    )
