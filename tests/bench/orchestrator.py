"""What the orchestrator adds to a chat: `python -m tests.bench.orchestrator`.

One orchestrator process with its journal, an inference service in this process that answers at once, and 1, 16 and 64
clients; latency, requests per second, and requests per second of the orchestrator's processor time. A relay that does
nothing but pass the call on is measured beside it, with the same gRPC: what it takes nobody can save.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import psutil

from pagantic.common.v1 import message_pb2, usage_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_grpc
from pagantic.orchestrator.v1 import execution_pb2, orchestrator_service_pb2_grpc
from pagantic_common.client import chat_request
from pagantic_common.domain.calls.api_keys import make_key
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.tenant_tokens import write_key_pair
from pagantic_common.rpc.access.tls.calling import Target, find_target
from pagantic_common.telemetry.names import AUTHORIZATION_KEY
from services.orchestrator.ports.journal import Durability
from tests.bench.ours import running_service
from tests.support.certificates import PREFIX, Authority, TlsFiles

Metadata = tuple[tuple[str, str], ...]

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


async def _measure(stub: Any, process: psutil.Process, clients: int, metadata: Metadata) -> None:
    times: list[float] = []
    numbers = iter(range(REQUESTS))

    async def work() -> None:
        for _ in numbers:
            started_s = time.perf_counter()
            response = await stub.Execute(_chat(), metadata=metadata)
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


class Relay(orchestrator_service_pb2_grpc.OrchestratorServiceServicer):
    """Passes a request on to inference and its text back."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = inference_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]

    async def Execute(
        self, request: execution_pb2.SystemRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> execution_pb2.SystemResponse:
        """Relay."""
        chat = generation_pb2.ChatPrompt(messages=request.messages)
        events = [event async for event in self._stub.Infer(inference_pb.InferRequest(chat=chat))]
        return execution_pb2.SystemResponse(content="".join(event.delta.content for event in events))


async def _relay(inference: str) -> None:
    """Serve as the relay, and print the port."""
    async with grpc.aio.insecure_channel(inference) as channel:
        server = grpc.aio.server()
        orchestrator_service_pb2_grpc.add_OrchestratorServiceServicer_to_server(Relay(channel), server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)  # noqa: T201
        await server.wait_for_termination()


async def _measure_all(name: str, target: Target, pid: int, key: str = "") -> None:
    metadata: Metadata = ((AUTHORIZATION_KEY, f"Bearer {key}"),) if key else ()
    print(name)  # noqa: T201
    async with target.open(MAX_MESSAGE_BYTES) as channel:
        stub = orchestrator_service_pb2_grpc.OrchestratorServiceStub(channel)  # type: ignore[no-untyped-call]
        for _ in range(WARM_UP):
            await stub.Execute(_chat(), metadata=metadata)
        for clients in CLIENTS:
            await _measure(stub, psutil.Process(pid), clients, metadata)


async def _run() -> None:
    server = grpc.aio.server()
    inference_grpc.add_InferenceServiceServicer_to_server(InstantInference(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    inference = f"127.0.0.1:{port}"
    authority, folder = Authority(), tempfile.TemporaryDirectory()
    files = TlsFiles(Path(folder.name)).write(authority.issue(f"{PREFIX}orchestrator"), authority)
    pair = (files.key.read_bytes(), files.chain.read_bytes())
    encrypted_port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([pair], authority.pem, require_client_auth=True)
    )
    await server.start()
    print(f"the inference alone: p50 {await _direct(inference) * 1000:.2f} ms")  # noqa: T201
    command = [sys.executable, "-m", "tests.bench.orchestrator", inference]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:  # noqa: ASYNC220 - nothing else runs
        relay_port = relay.stdout.readline().strip() if relay.stdout else ""
        await _measure_all("a bare relay", Target(f"127.0.0.1:{relay_port}"), relay.pid)
        relay.terminate()
    with folder:
        shared = {"inference_address": inference, "constraint_address": inference}
        for durability in Durability:
            journal = f"sqlite:///{Path(folder.name) / durability}.sqlite3"
            await _measure_orchestrator(
                f"the orchestrator, durability {durability}",
                {**shared, "journal_url": journal, "durability": durability.value},
            )
        settings, key = _identity(Path(folder.name), shared)
        await _measure_orchestrator("durability process, with an API key and tenant tokens", settings, key)
        settings |= {"journal_url": f"sqlite:///{folder.name}/audit.sqlite3", "audit": "true"}
        await _measure_orchestrator("and with the audit", settings, key)
        settings |= {"journal_url": f"sqlite:///{folder.name}/all.sqlite3"} | _restrictions(Path(folder.name))
        await _measure_orchestrator("and with policies, rates, and an encrypted journal", settings, key)
        tls = {name: str(value) for name, value in files.settings.items()}
        encrypted = f"127.0.0.1:{encrypted_port}"
        settings |= tls | {"inference_address": encrypted, "constraint_address": encrypted}
        settings |= {"journal_url": f"sqlite:///{folder.name}/tls.sqlite3"}
        await _measure_orchestrator("and with TLS on both sides", settings, key, files.environment)
    await server.stop(None)


def _identity(folder: Path, shared: dict[str, str]) -> tuple[dict[str, str], str]:
    """Return the settings with which callers need a key, and one."""
    key, file = make_key(os.urandom).text, folder / "key"
    file.write_text(key)
    signing, _verifying = write_key_pair(folder / "identity")
    settings = {"auth": "keys", "admin_key_file": str(file), "signing_key_file": str(signing), "audit": "false"}
    journal = {"journal_url": f"sqlite:///{folder}/key.sqlite3", "durability": Durability.PROCESS.value}
    return {**shared, **settings, **journal}, key


def _restrictions(folder: Path) -> dict[str, str]:
    policies, audit_key, journal_key = folder / "policies", folder / "audit-key", folder / "journal-key"
    policies.write_text("permit(principal, action, resource);")
    audit_key.write_bytes(os.urandom(32).hex().encode())
    journal_key.write_bytes(base64.b64encode(os.urandom(32)))
    return {
        "policy_file": str(policies),
        "audit_key_file": str(audit_key),
        "journal_key_file": str(journal_key),
        "call_rate_of_tenant": "1000000/minute",
        "call_rate_of_key": "1000000/minute",
    }


async def _measure_orchestrator(
    name: str, settings: dict[str, str], key: str = "", environment: Mapping[str, str] = MappingProxyType({})
) -> None:
    service = running_service("orchestrator", environment, **settings)
    address, pid = await asyncio.to_thread(service.__enter__)
    try:
        await _measure_all(name, find_target(address, environment), pid, key)
    finally:
        await asyncio.to_thread(service.__exit__, None, None, None)


def main() -> None:
    """Start, measure, stop; with the address of an inference service, serve as the relay."""
    asyncio.run(_relay(sys.argv[1]) if len(sys.argv) > 1 else _run())


if __name__ == "__main__":
    main()
