"""What the orchestrator adds to a chat: `python -m tests.bench.orchestrator`.

One orchestrator process with its journal, an inference service in this process that answers at once, and 1, 16 and 64
clients; latency, requests per second, and requests per second of the orchestrator's processor time.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import psutil

from pagantic.common.v1 import message_pb2, usage_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_grpc
from pagantic.orchestrator.v1 import execution_pb2, orchestrator_service_pb2_grpc
from pagantic_common.client import chat_request
from tests.bench.ours import running_service

CLIENTS = (1, 16, 64)
REQUESTS = 1000
WARM_UP = 50


class InstantInference(inference_grpc.InferenceServiceServicer):
    """Answers each request at once, with one delta."""

    async def Infer(
        self, request: inference_pb.InferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb.InferResponse]:
        """Answer."""
        yield inference_pb.InferResponse(started=inference_pb.InferenceStarted(prompt_tokens=10))
        yield inference_pb.InferResponse(delta=inference_pb.CandidateDelta(content="It is for ships."))
        end = inference_pb.CandidateEnd(finish_reason=generation_pb2.FINISH_REASON_STOP, output_tokens=5)
        yield inference_pb.InferResponse(candidate_end=end)
        usage = usage_pb2.TokenUsage(prompt_tokens=10, output_tokens=5)
        yield inference_pb.InferResponse(completed=inference_pb.InferenceCompleted(usage=usage))


def _chat() -> execution_pb2.SystemRequest:
    return chat_request("What is a lighthouse for?", tools=[])


async def _measure(stub: Any, process: psutil.Process, clients: int) -> None:
    times: list[float] = []
    numbers = iter(range(REQUESTS))

    async def work() -> None:
        for _ in numbers:
            started_s = time.perf_counter()
            response = await stub.Execute(_chat())
            times.append(time.perf_counter() - started_s)
            if not response.content:
                raise SystemExit(f"no answer: {response}")

    before = process.cpu_times()
    started_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    took_s = time.perf_counter() - started_s
    after = process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    times.sort()
    p50, p99 = times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000
    print(  # noqa: T201
        f"{clients:3} clients  p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  {REQUESTS / took_s:6.0f} requests/s"
        f"  {REQUESTS / cpu_s:6.0f} requests per CPU second"
    )


async def _direct(address: str) -> float:
    """Return the seconds that the instant answer takes without an orchestrator, median."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        request = inference_pb.InferRequest(chat=generation_pb2.ChatPrompt(messages=[message_pb2.Message(content="x")]))
        times = []
        for _ in range(200):
            started_s = time.perf_counter()
            async for _response in stub.Infer(request):
                pass
            times.append(time.perf_counter() - started_s)
    return sorted(times)[100]


async def _run() -> None:
    server = grpc.aio.server()
    inference_grpc.add_InferenceServiceServicer_to_server(InstantInference(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    inference = f"127.0.0.1:{port}"
    print(f"the inference alone: p50 {await _direct(inference) * 1000:.2f} ms")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        journal = f"sqlite:///{Path(folder) / 'journal.sqlite3'}"
        service = running_service("orchestrator", inference_address=inference, journal_url=journal)
        address, pid = await asyncio.to_thread(service.__enter__)
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = orchestrator_service_pb2_grpc.OrchestratorServiceStub(channel)  # type: ignore[no-untyped-call]
                for _ in range(WARM_UP):
                    await stub.Execute(_chat())
                for clients in CLIENTS:
                    await _measure(stub, psutil.Process(pid), clients)
        finally:
            await asyncio.to_thread(service.__exit__, None, None, None)
    await server.stop(None)


def main() -> None:
    """Start, measure, stop."""
    asyncio.run(_run())


if __name__ == "__main__":
    main()
