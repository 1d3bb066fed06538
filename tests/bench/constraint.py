"""How fast the constraint service answers: `python -m tests.bench.constraint`, one call at a time and 8 at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import grpc

from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic.constraint.v1 import constraint_service_pb2_grpc as rpc_grpc
from pagantic.constraint.v1 import contract_pb2
from tests.bench import texts
from tests.bench.ours import running_service

CALLS = 1000
COLD_CALLS = 200
AT_ONCE = 8
ANSWER_CHARS = 2048

Call = Callable[[int], Awaitable[object]]


def _answer() -> str:
    """Return a ticket of about 2 KB that satisfies the schema but for a schema without a limit on its steps."""
    step = {"action": "look at the switch of rack 12", "owner": "operations", "minutes": 15}
    ticket = {
        "title": "Disk of db-1 is full",
        "severity": "high",
        "component": "storage",
        "reporter": {"name": "Amara", "team": "operations", "is_on_call": True},
        "impact": {"affected_users": 1200, "is_data_lost": False},
        "steps": [step],
        "labels": ["outage"],
    }
    while len(json.dumps(ticket)) < ANSWER_CHARS:
        ticket["steps"] = [*ticket["steps"], step]  # type: ignore[misc]
    return json.dumps(ticket)


def _schema(number: int | None = None) -> str:
    schema = json.loads(json.dumps(texts.TICKET_SCHEMA))
    del schema["properties"]["steps"]["maxItems"]
    if number is not None:
        schema["title"] = f"Ticket {number}"
    return json.dumps(schema)


async def _measure(name: str, call: Call, calls: int, clients: int) -> None:
    times: list[float] = []
    numbers = iter(range(calls))

    async def work() -> None:
        for number in numbers:
            started_s = time.perf_counter()
            await call(number)
            times.append(time.perf_counter() - started_s)

    started_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    rate = calls / (time.perf_counter() - started_s)
    times.sort()
    p50, p99 = times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000
    print(f"{name:34} {clients} at once  p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  {rate:6.0f} calls/s")  # noqa: T201


async def _run(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc_grpc.ConstraintServiceStub(channel)  # type: ignore[no-untyped-call]
        enforce = rpc.EnforceRequest(
            output=_answer(), contract=contract_pb2.OutputContract(schema_json=_schema()), decoder_enforced=True
        )
        reply = await stub.Enforce(enforce)
        if reply.guarantee != contract_pb2.GUARANTEE_ENFORCED:
            raise SystemExit(f"the answer is not accepted: {reply}")
        ruled = rpc.EnforceRequest()
        ruled.CopyFrom(enforce)
        ruled.rules.add(name="users", expression="value.impact.affected_users < 2000.0 && size(output) > 10")
        await _measure("Compile, each schema another", lambda n: stub.Compile(_compile(n)), COLD_CALLS, 1)
        for clients in (1, AT_ONCE):
            await _measure("Compile, cached", lambda _: stub.Compile(_compile(0)), CALLS, clients)
            await _measure("Enforce 2 KB, 15 keys", lambda _: stub.Enforce(enforce), CALLS, clients)
            await _measure("Enforce with a rule in CEL", lambda _: stub.Enforce(ruled), CALLS, clients)


def _compile(number: int) -> rpc.CompileRequest:
    return rpc.CompileRequest(schema_json=_schema(number))


def main() -> None:
    """Start the service, measure, stop it."""
    with running_service("constraint") as (address, _):
        asyncio.run(_run(address))


if __name__ == "__main__":
    main()
