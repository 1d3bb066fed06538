"""What one tenant learns of another, and waits for it: `python -m tests.bench.tenants`.

The attack: the attacker asks what the victim may have asked before, and looks at the count of cached tokens and at the
time to the first token. Each is a score by which it tells prompts that the victim asked from prompts that nobody asked;
printed is the area under the curve (AUC): 0.5 is guessing, 1 is certainty. Against its own tenant the attack must work.
A declared prompt, which tenants share, is computed once for all. Then the time to the first token of one tenant is
measured while another has 200 requests queued.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import grpc

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.calls.principal import work_of
from pagantic_common.rpc.access.tenant_tokens import TenantTokens, read_signing_key, write_key_pair
from pagantic_common.telemetry.names import AUTHORIZATION_KEY
from tests.bench.ours import running_service
from tests.bench.texts import HANDBOOK, opening, passage

TRIALS = 40
TENANTS = 32
QUEUED = 200
PROBES = 10


class Caller:
    """Calls one inference service for tenants."""

    def __init__(self, channel: grpc.aio.Channel, tokens: TenantTokens) -> None:
        self._stub = rpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        self._tokens = tokens

    async def ask(self, tenant: str, text: str, *, system: str = "", max_tokens: int = 1) -> tuple[int, int, float]:
        """Return the prompt tokens of a request, how many of them were cached, and the seconds to the first token."""
        messages = [message_pb2.Message(role=message_pb2.ROLE_USER, content=text)]
        if system:
            messages.insert(0, message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content=system))
        request = pb.InferRequest(chat=generation_pb2.ChatPrompt(messages=messages), max_tokens=max_tokens)
        credentials = ((AUTHORIZATION_KEY, self._tokens.credentials("inference", work_of(tenant))),)
        began_s, first_s, started = time.perf_counter(), 0.0, pb.InferenceStarted()
        async for event in self._stub.Infer(request, metadata=credentials):
            first_s = first_s or time.perf_counter() - began_s
            if event.WhichOneof("event") == "started":
                started = event.started
        return started.prompt_tokens, started.cached_prompt_tokens, first_s


def area_under_curve(asked: Sequence[float], unasked: Sequence[float]) -> float:
    """Return the probability that a score of what was asked is above one of what was not; equal scores count half."""
    pairs = [(one > other) + (one == other) / 2 for one in asked for other in unasked]
    return sum(pairs) / len(pairs)


async def _attack(caller: Caller, random: Random, victim: str, attacker: str) -> None:
    cached: dict[bool, list[float]] = {True: [], False: []}
    speed: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(TRIALS):
        for was_asked in random.sample([True, False], 2):
            secret = _question(random)
            if was_asked:
                await caller.ask(victim, secret)
            _tokens, count, first_s = await caller.ask(attacker, secret)
            cached[was_asked].append(count)
            speed[was_asked].append(-first_s)
    counts, times = (area_under_curve(scores[True], scores[False]) for scores in (cached, speed))
    print(f"{attacker} attacks {victim}: AUC by cached tokens {counts:.2f}, by time {times:.2f}, {TRIALS} of each")  # noqa: T201


def _question(random: Random) -> str:
    return f"{opening(random)} {passage(random)}"


async def _share(caller: Caller, declared: str) -> None:
    answers = [await caller.ask(f"tenant-{index}", f"I am {index}.", system=declared) for index in range(TENANTS)]
    computed = [tokens - cached for tokens, cached, _ in answers]
    print(  # noqa: T201
        f"a declared prompt of {answers[0][0]} tokens with the question, {TENANTS} tenants: "
        f"{computed[0]} tokens computed for the first, {statistics.median(computed[1:]):.0f} for each other"
    )


async def _queue(caller: Caller, random: Random) -> None:
    quiet = [(await caller.ask("quiet", _question(random)))[2] for _ in range(PROBES)]
    flood = [asyncio.ensure_future(caller.ask("flood", _question(random), max_tokens=64)) for _ in range(QUEUED)]
    await asyncio.sleep(3)
    beside = [(await caller.ask("quiet", _question(random)))[2] for _ in range(PROBES)]
    left = sum(not one.done() for one in flood)
    for one in flood:
        one.cancel()
    await asyncio.wait(flood)
    print(  # noqa: T201
        f"first token, median of {PROBES}: alone {statistics.median(quiet):.2f} s, beside {QUEUED} queued requests of "
        f"another tenant ({left} of them left at the end) {statistics.median(beside):.2f} s, most {max(beside):.2f} s"
    )


async def _run() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        signing, verifying = write_key_pair(folder / "keys")
        (folder / "prompts").mkdir()
        declared = f"{HANDBOOK}\n{_question(Random(2))}"  # noqa: S311 - a text for a measurement
        (folder / "prompts" / "handbook.txt").write_text(declared)
        settings = {"auth": "tokens", "verifying_keys_file": str(verifying), "queue_capacity": str(QUEUED)}
        settings |= {"shared_prompt_folder": str(folder / "prompts"), "tuning": "false"}
        service = running_service("inference", **settings)
        address, _pid = await asyncio.to_thread(service.__enter__)
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                caller = Caller(channel, TenantTokens(read_signing_key(signing)))
                await caller.ask("acme", "Hello.")
                random = Random(1)  # noqa: S311 - texts for a measurement
                await _attack(caller, random, "acme", "acme")
                await _attack(caller, random, "acme", "beta")
                await _share(caller, declared)
                await _queue(caller, random)
        finally:
            await asyncio.to_thread(service.__exit__, None, None, None)


if __name__ == "__main__":
    asyncio.run(_run())
