"""Sends a load to real replicas, through one policy, and measures the first tokens and the computed tokens."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Protocol

import grpc
import httpx

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.peer import Peer, pass_on
from services.orchestrator.adapters.inference.addresses import parse_address
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.adapters.inference.routed_calls import RoutedCalls
from services.orchestrator.core.routing.prefixes import PromptPrefixes
from services.orchestrator.core.routing.replicas import Call, Load, Replicas
from tests.bench.routing.load import Arrival
from tests.bench.routing.simulation import Result
from tests.bench.texts import words_of

CALL_S = 300.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """The texts of a request: what it shares, and its own."""

    system: str
    user: str


class Sender(Protocol):
    """One caller of the replicas, through a policy."""

    async def first_token(self, arrival: Arrival, prompt: Prompt) -> float:
        """Send a request, read it to its end, and return the monotonic time of its first token."""


class GrpcSender:
    """Calls Infer over a channel: gRPC's own policy, or a proxy behind the address."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.InferenceServiceStub(channel)

    async def first_token(self, arrival: Arrival, prompt: Prompt) -> float:
        metadata = (("x-prefix", str(arrival.prefix)),)
        call = self._stub.Infer(request_of(arrival, prompt), metadata=metadata, timeout=CALL_S)
        return await _read(call)


class RoutedSender:
    """Calls Infer as an orchestrator does."""

    def __init__(self, channel: grpc.aio.Channel, replicas: ReplicaSet) -> None:
        stub: rpc.InferenceServiceAsyncStub = rpc.InferenceServiceStub(channel)
        self._calls = RoutedCalls(Peer("inference", channel, patience_s=30.0), stub, 30.0, replicas)

    async def first_token(self, arrival: Arrival, prompt: Prompt) -> float:
        async with self._calls.responses(request_of(arrival, prompt)) as responses:
            return await _read(responses)


class HttpSender:
    """Calls a server of OpenAI's API."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._model = ""

    async def first_token(self, arrival: Arrival, prompt: Prompt) -> float:
        messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
        if not self._model:
            models = (await self._client.get("/models")).json()
            self._model = models["data"][0]["id"]
        body = {"model": self._model, "messages": messages, "max_tokens": arrival.output_tokens, "stream": True}
        first_s = 0.0
        async with self._client.stream("POST", "/chat/completions", json={**body, "temperature": 0}) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not first_s and line.startswith("data: {"):
                    choices = json.loads(line[6:]).get("choices") or [{}]
                    if choices[0].get("delta", {}).get("content"):
                        first_s = time.monotonic()
        if not first_s:
            raise RuntimeError("the answer has no text")
        return first_s


def request_of(arrival: Arrival, prompt: Prompt) -> pb.InferRequest:
    """Return the request of an arrival."""
    request = pb.InferRequest(max_tokens=arrival.output_tokens)
    request.sampling.temperature = 0.0
    request.chat.messages.add(role="ROLE_SYSTEM", content=prompt.system or "Answer briefly.")
    request.chat.messages.add(role="ROLE_USER", content=prompt.user)
    return request


async def _read(responses: AsyncIterator[pb.InferResponse]) -> float:
    first_s = 0.0
    async for response in responses:
        if not first_s and response.HasField("delta"):
            first_s = time.monotonic()
    if not first_s:
        raise RuntimeError("the answer has no text")
    return first_s


class Texts:
    """Makes the texts of prompts, of as many tokens as the arrivals say, more or less."""

    def __init__(self, seed: int, shared_tokens: int) -> None:
        self._seed = seed
        self._shared_tokens = shared_tokens

    def prompt(self, number: int, arrival: Arrival) -> Prompt:
        """Return the texts of a request; those of one prefix begin alike."""
        own = len(arrival.prompt) - self._shared_tokens
        system = words_of(Random(f"{self._seed} {arrival.prefix}"), self._shared_tokens)  # noqa: S311 - no secret
        return Prompt(system, words_of(Random(f"{self._seed} own {number}"), own))  # noqa: S311 - no secret


async def send_all(
    senders: Sequence[Sender], arrivals: Sequence[Arrival], texts: Texts, addresses: Sequence[str], window: Window
) -> tuple[Result, int]:
    """Send each request at its time through the senders in turn; return what it met, and the number of failures.

    First tokens are those of the requests that came in the window.
    """
    before = await computed_tokens(addresses)
    begun_s = time.monotonic()
    result = Result()
    failed = 0

    async def send(number: int, arrival: Arrival) -> None:
        nonlocal failed
        await asyncio.sleep(max(0.0, begun_s + arrival.at_s - time.monotonic()))
        sent_s = time.monotonic()
        try:
            first_s = await senders[number % len(senders)].first_token(arrival, texts.prompt(number, arrival))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and shown
            failed += 1
            if failed == 1:
                print(f"    the first failure: {type(error).__name__}: {str(error)[:200]}")  # noqa: T201
            return
        if window.start_s <= arrival.at_s < window.end_s:
            result.first_token_s.append(first_s - sent_s)
        result.output_tokens += arrival.output_tokens

    async with asyncio.TaskGroup() as group:
        for number, arrival in enumerate(arrivals):
            group.create_task(send(number, arrival))
    result.duration_s = time.monotonic() - begun_s
    result.computed_tokens = await computed_tokens(addresses) - before
    return result, failed


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a load, in seconds since its beginning."""

    start_s: float
    end_s: float


class FrozenNews(Replicas):
    """What an orchestrator knows of replicas whose reports do not arrive in a window."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window
        self._begun_s = math.inf

    def choose(self, prefixes: PromptPrefixes, now_s: float, avoided: Collection[str] = ()) -> Call | None:
        """Choose as ever; the window counts from the first choice."""
        self._begun_s = min(self._begun_s, now_s)
        return super().choose(prefixes, now_s, avoided)

    def note_load(self, address: str, load: Load, now_s: float) -> None:
        """Take the news outside the window."""
        if not self._is_frozen:
            super().note_load(address, load, now_s)

    def note_keys(self, address: str, added: Iterable[int], removed: Iterable[int], *, is_first: bool) -> None:
        """Take the news outside the window."""
        if not self._is_frozen:
            super().note_keys(address, added, removed, is_first=is_first)

    @property
    def _is_frozen(self) -> bool:
        return self._window.start_s <= time.monotonic() - self._begun_s < self._window.end_s


async def computed_tokens(addresses: Sequence[str]) -> int:
    """Return the tokens that all replicas have computed since their start, by their metrics."""
    total = 0.0
    async with httpx.AsyncClient() as client:
        for address in addresses:
            host = address.rpartition(":")[0]
            lines = (await client.get(f"http://{host}:{METRICS_PORT}/metrics")).text.splitlines()
            total += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(COMPUTED))
    return round(total)


METRICS_PORT = 50790
COMPUTED = "pagantic_inference_computed_tokens_total"


@asynccontextmanager
async def grpc_senders(addresses: Sequence[str]) -> AsyncIterator[list[Sender]]:
    """Yield a caller of each address."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES))
            for address in addresses
        ]
        yield [GrpcSender(channel) for channel in channels]


@asynccontextmanager
async def routed_senders(
    addresses: Sequence[str], count: int, interval_s: float, frozen: Window | None = None
) -> AsyncIterator[list[Sender]]:
    """Yield callers that choose as orchestrators do; each knows nothing of the others.

    Reports come each `interval_s`, and not at all in the window `frozen`.
    """
    target = f"ipv4:{','.join(addresses)}"
    address = parse_address(target)
    assert address is not None
    senders: list[Sender] = []
    async with AsyncExitStack() as stack:
        for _ in range(count):
            channel = await stack.enter_async_context(open_channel(target, max_message_bytes=MAX_MESSAGE_BYTES))
            replicas = ReplicaSet(
                address,
                lambda one: open_channel(one, max_message_bytes=MAX_MESSAGE_BYTES, replica_of="inference"),
                pass_on,
                b"",
                interval_s,
            )
            if frozen is not None:
                replicas._known = FrozenNews(frozen)
            await stack.enter_async_context(replicas)
            senders.append(RoutedSender(channel, replicas))
        await asyncio.sleep(2.0)
        yield senders


@asynccontextmanager
async def http_senders(hosts: Sequence[str]) -> AsyncIterator[list[Sender]]:
    """Yield a caller of each server of OpenAI's API."""
    async with AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=None)
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://{host}/v1", timeout=CALL_S, limits=limits)
            )
            for host in hosts
        ]
        yield [HttpSender(client) for client in clients]
