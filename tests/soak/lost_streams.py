"""`python -m tests.soak.lost_streams`: clients of the HTTP gateway leave at random moments, before a running system.

Half of them come no more: nothing they asked for may run on. The others asked in the background and come back through
another gateway: they must see each event once, and the whole text.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import openai

from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound
from tests.support.gateway_process import serving_gateway

AT_ONCE = 16
QUIET_S = 20.0
MAX_TOKENS = 60
_ENDED = (
    execution_pb2.LIFECYCLE_STATE_CANCELLED,
    execution_pb2.LIFECYCLE_STATE_COMPLETE,
    execution_pb2.LIFECYCLE_STATE_ERROR,
)


@dataclass
class Count:
    """What happened to the clients."""

    left: int = 0
    not_begun: int = 0
    states: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    problems: list[str] = field(default_factory=list)


async def _leave(client: openai.AsyncOpenAI, number: int, choose: random.Random, ids: list[str]) -> None:
    """Ask for a long answer and leave before it ends, by the connection, after a random time or number of chunks."""
    stays_s = choose.uniform(0.0, 2.0)

    async def listen() -> None:
        stream = await client.chat.completions.create(
            model="gpt-4o",
            messages=[{"role": "user", "content": f"Tell a long story about the number {number}."}],
            max_tokens=2000,
            stream=True,
            extra_body={"pagantic": {"request_id": ids[number]}},
        )
        async with stream:
            async for _chunk in stream:
                pass

    with suppress(TimeoutError):
        async with asyncio.timeout(stays_s):
            await listen()


async def _come_back(clients: list[openai.AsyncOpenAI], number: int, choose: random.Random, count: Count) -> None:
    """Ask in the background, lose the stream several times, and compare what was seen with what is stored."""
    asked: dict[str, Any] = {"model": "gpt-4o", "max_output_tokens": MAX_TOKENS, "background": True}
    stream: Any = await clients[0].responses.create(input=f"Count from {number}.", stream=True, **asked)
    seen = await _read(stream, choose.randint(1, 20))
    response_id, loses = seen[0].response.id, choose.randint(1, 3)
    for turn in range(loses + 1):
        limit = choose.randint(1, 20) if turn < loses else sys.maxsize
        last = seen[-1].sequence_number
        if seen[-1].type in ("response.completed", "response.incomplete"):
            break
        again = clients[(turn + 1) % len(clients)]
        seen += await _read(await again.responses.retrieve(response_id, stream=True, starting_after=last), limit)
    count.resumed += 1
    whole = await clients[1].responses.retrieve(response_id)
    numbers = [event.sequence_number for event in seen]
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    if numbers != sorted(set(numbers)):
        count.problems.append(f"{response_id}: an event came twice or out of order: {numbers}")
    if text != whole.output_text:
        count.problems.append(f"{response_id}: {text!r} was seen, and {whole.output_text!r} is stored")


async def _read(stream: Any, limit: int) -> list[Any]:
    events: list[Any] = []
    async with stream:
        async for event in stream:
            events.append(event)
            if len(events) >= limit:
                break
    return events


async def _states(client: AsyncClient, ids: list[str], count: Count) -> None:
    """Look what became of the executions that were left."""
    for request_id in ids:
        try:
            execution = await client.get_execution(request_id)
        except NotFound:
            count.not_begun += 1
            continue
        name = execution_pb2.LifecycleState.Name(execution.state.current).removeprefix("LIFECYCLE_STATE_")
        count.states[name] = count.states.get(name, 0) + 1
        if execution.state.current not in _ENDED:
            count.problems.append(f"{request_id} is still {name}")


async def _quiet(inference: str) -> float | None:
    """Return the seconds until the engine decodes nothing; None where it goes on."""
    started_s = time.perf_counter()
    async with grpc.aio.insecure_channel(inference) as channel:
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        while time.perf_counter() - started_s < QUIET_S:
            load = await stub.GetLoad(inference_service_pb2.GetLoadRequest())
            if not load.running_sequences and not load.queued_requests:
                return time.perf_counter() - started_s
            await asyncio.sleep(0.02)
    return None


async def _at_once(works: list[Any]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def run(work: Any) -> None:
        async with gate:
            await work

    await asyncio.gather(*(run(work) for work in works))


async def _run(urls: list[str], options: argparse.Namespace) -> Count:
    count, choose = Count(), random.Random(options.seed)  # noqa: S311 - no secret
    clients = [openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=600) for url in urls]
    ids = [f"left-{options.seed}-{time.time_ns()}-{number}" for number in range(options.clients)]
    await _at_once([_leave(clients[number % 2], number, choose, ids) for number in range(options.clients)])
    count.left = options.clients
    quiet_s = await _quiet(options.inference)
    if quiet_s is None:
        count.problems.append(f"the engine still decodes {QUIET_S} s after the last client left")
    else:
        print(f"the engine decoded nothing {quiet_s:.2f} s after the last client left")  # noqa: T201
    async with AsyncClient(options.address) as client:
        await _states(client, ids, count)
    await _at_once([_come_back(clients, number, choose, count) for number in range(options.clients)])
    for client in clients:
        await client.close()
    return count


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.lost_streams", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--address", default="127.0.0.1:50051", help="of a running orchestrator")
    parser.add_argument("--inference", default="127.0.0.1:50052", help="of its inference service")
    parser.add_argument("--seed", type=int, default=17)
    options = parser.parse_args()
    environment = dict(os.environ) | {"PAGANTIC_ADDRESS": options.address}
    with serving_gateway(environment) as one, serving_gateway(environment) as other:
        count = asyncio.run(_run([one, other], options))
    print(  # noqa: T201
        f"{count.left} clients left: {count.not_begun} before the execution began, and of the others"
        f" {count.states}; {count.resumed} came back; {len(count.problems)} problems"
    )
    print("\n".join(count.problems[:20]))  # noqa: T201
    return bool(count.problems)


if __name__ == "__main__":
    sys.exit(main())
