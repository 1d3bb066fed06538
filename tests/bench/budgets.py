"""Whether a budget holds, and what it costs: `python -m tests.bench.budgets`.

Three orchestrators on one PostgreSQL and 64 clients spend a budget, while an orchestrator is killed every few seconds.
An inference service in this process answers at once, and counts what it gave out: that must never be more than the
budget. Then how long reservations took is read from the orchestrators' metrics. Those of the first moments of an
orchestrator are told apart: its callers come back all at once, and it has nothing of the budget yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import psutil

from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_grpc
from pagantic.orchestrator.v1 import budget_pb2, orchestrator_service_pb2, orchestrator_service_pb2_grpc
from pagantic_common.client import chat_request
from pagantic_common.telemetry.names import ORCHESTRATOR_BUDGET_CHECK_DURATION
from tests.bench.ours import running_service
from tests.support.ports import free_ports
from tests.support.postgres import find_programs, running_postgres

ORCHESTRATORS = 3
CLIENTS = 64
BUDGET = 6_000_000
PROMPT, OUTPUT = 100, 200
KILL_EVERY_S = 4.0
WITHIN_S = 0.003
FIRST_MOMENTS_S = 1.5


class CountingInference(inference_grpc.InferenceServiceServicer):
    """Answers each request at once, and counts the tokens."""

    def __init__(self) -> None:
        self.tokens = 0

    async def Infer(
        self, request: inference_pb.InferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb.InferResponse]:
        """Answer."""
        self.tokens += PROMPT + OUTPUT
        yield inference_pb.InferResponse(started=inference_pb.InferenceStarted(prompt_tokens=PROMPT))
        yield inference_pb.InferResponse(delta=inference_pb.CandidateDelta(content="It is for ships."))
        end = inference_pb.CandidateEnd(finish_reason=generation_pb2.FINISH_REASON_STOP, output_tokens=OUTPUT)
        yield inference_pb.InferResponse(candidate_end=end)
        usage = usage_pb2.TokenUsage(prompt_tokens=PROMPT, output_tokens=OUTPUT)
        yield inference_pb.InferResponse(completed=inference_pb.InferenceCompleted(usage=usage))


class Orchestrators:
    """The orchestrators of one journal, each by its number; a killed one is started again."""

    def __init__(self, stack: ExitStack, url: str, inference: str) -> None:
        self._stack = stack
        self._settings = {"journal_url": url, "inference_address": inference, "constraint_address": inference}
        self._running: dict[int, tuple[str, int]] = {}
        self.checks: Counter[float] = Counter()
        self.first_checks: Counter[float] = Counter()
        self._metrics: dict[int, int] = {}

    def start(self, number: int) -> None:
        """Start an orchestrator."""
        (self._metrics[number],) = free_ports(1)
        own = {"instance_id": f"o{number}", "metrics_port": str(self._metrics[number])}
        self._running[number] = self._stack.enter_context(_started(self._settings | own))

    def address(self, number: int) -> str:
        """Return where an orchestrator listens."""
        return self._running[number][0]

    def kill(self, number: int) -> None:
        """End an orchestrator without a warning, and start it again."""
        self.checks += self._read_checks(number)
        psutil.Process(self._running[number][1]).send_signal(signal.SIGKILL)
        self.start(number)

    def note_first_checks(self, number: int) -> None:
        """Wait for the end of an orchestrator's first moments, and add its reservations until then."""
        time.sleep(FIRST_MOMENTS_S)
        self.first_checks += self._read_checks(number)

    def note_checks(self) -> None:
        """Add the reservations of the orchestrators that run."""
        for number in self._running:
            self.checks += self._read_checks(number)

    def _read_checks(self, number: int) -> Counter[float]:
        """Return how many reservations of an orchestrator took how long, by the upper bounds of their buckets."""
        found: Counter[float] = Counter()
        page = urllib.request.urlopen(f"http://127.0.0.1:{self._metrics[number]}/metrics", timeout=5).read().decode()
        pattern = rf'{ORCHESTRATOR_BUDGET_CHECK_DURATION}_seconds_bucket{{.*?le="([^"]+)".*?}} ([0-9.e+]+)'
        before = 0.0
        for bound, count in re.findall(pattern, page):
            found[float(bound)] += int(float(count) - before)
            before = float(count)
        return found


@contextmanager
def _started(settings: dict[str, str]) -> Iterator[tuple[str, int]]:
    service = running_service("orchestrator", **settings)
    yield service.__enter__()
    with contextlib.suppress(ProcessLookupError):  # it was killed
        service.__exit__(None, None, None)


async def _spend(orchestrators: Orchestrators, outcomes: Counter[str]) -> None:
    """Send requests until the budget is empty: refused by every orchestrator in turn, several times."""
    refused = 0
    for number in itertools.cycle(range(ORCHESTRATORS)):
        if refused >= 2 * ORCHESTRATORS:
            return
        try:
            async with grpc.aio.insecure_channel(orchestrators.address(number)) as channel:
                stub = orchestrator_service_pb2_grpc.OrchestratorServiceStub(channel)  # type: ignore[no-untyped-call]
                for _ in range(10):
                    request = chat_request("What is a lighthouse for?", tools=[], max_tokens=256)
                    response = await stub.Execute(request, timeout=20)
                    if response.error.code == error_pb2.ERROR_CODE_QUOTA_BUDGET:
                        outcomes["refused"] += 1
                        refused += 1
                        await asyncio.sleep(0.3)
                        break
                    refused = 0
                    outcomes["answered" if response.content else "failed"] += 1
        except grpc.aio.AioRpcError as error:
            outcomes[error.code().name] += 1
            await asyncio.sleep(0.3)


async def _kill_in_turn(orchestrators: Orchestrators, is_over: asyncio.Event) -> None:
    for number in itertools.cycle(range(ORCHESTRATORS)):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), KILL_EVERY_S)
        if is_over.is_set():
            return
        await asyncio.to_thread(orchestrators.kill, number)
        await asyncio.to_thread(orchestrators.note_first_checks, number)


async def _run(stack: ExitStack) -> None:
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed")
    counting, server = CountingInference(), grpc.aio.server()
    inference_grpc.add_InferenceServiceServicer_to_server(counting, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    url = stack.enter_context(running_postgres(programs, is_safe=True))
    orchestrators = Orchestrators(stack, url, f"127.0.0.1:{port}")
    for number in range(ORCHESTRATORS):
        await asyncio.to_thread(orchestrators.start, number)
    async with grpc.aio.insecure_channel(orchestrators.address(0)) as channel:
        stub = orchestrator_service_pb2_grpc.OrchestratorServiceStub(channel)  # type: ignore[no-untyped-call]
        total = budget_pb2.BUDGET_PERIOD_TOTAL
        await stub.SetBudget(orchestrator_service_pb2.SetBudgetRequest(period=total, max_tokens=BUDGET))
    outcomes: Counter[str] = Counter()
    began_s = time.monotonic()
    is_over = asyncio.Event()
    killing = asyncio.create_task(_kill_in_turn(orchestrators, is_over))
    spending = [asyncio.create_task(_spend(orchestrators, outcomes)) for _ in range(CLIENTS)]
    await asyncio.gather(
        *(asyncio.to_thread(orchestrators.note_first_checks, number) for number in range(ORCHESTRATORS)), *spending
    )
    is_over.set()
    await killing
    await asyncio.to_thread(orchestrators.note_checks)
    await server.stop(None)
    _report(orchestrators, outcomes, counting.tokens, time.monotonic() - began_s)


def _report(orchestrators: Orchestrators, outcomes: Counter[str], used: int, took_s: float) -> None:
    checks, first = orchestrators.checks, orchestrators.first_checks
    print(f"{took_s:.0f} s, {CLIENTS} clients, {ORCHESTRATORS} orchestrators: {dict(outcomes)}")  # noqa: T201
    print(f"budget {BUDGET} tokens, used {used}: {max(0, used - BUDGET)} past it")  # noqa: T201
    for name, counted in (("all", checks), ("after the first moments", checks - first), ("first moments", first)):
        quick = sum(count for bound, count in counted.items() if bound <= WITHIN_S)
        share = 100 * quick / max(1, counted.total())
        print(f"{name}: {counted.total()} reservations, {share:.2f} % within {WITHIN_S * 1000:.0f} ms")  # noqa: T201
    for bound in sorted(checks):
        print(f"  up to {bound * 1000:8.1f} ms {checks[bound]:7}")  # noqa: T201


def main() -> None:
    """Run it, and end everything afterwards."""
    with ExitStack() as stack:
        asyncio.run(_run(stack))


if __name__ == "__main__":
    main()
