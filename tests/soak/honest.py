"""What honest callers send, and how: every mode, some with conversations, again where that may help."""

import asyncio
import json
import time
import uuid
from dataclasses import dataclass
from random import Random

import grpc

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.live_requests import CONTEXT, FIND, TELL, schema_of

DEADLINE_S = 60.0
AGAIN_AFTER_S = 0.5  # the first time; twice as long each time after, and by chance up to twice that
MOST_AGAIN_AFTER_S = 16.0
CUT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNKNOWN)
TALKS, TURNS = 24, 8
SCHEMA = json.dumps(schema_of(sad={"type": "boolean"}, kind={"enum": ["sea", "land"]}))
TEXTS = ["Say a word about the sea.", "What is 17 * 23?", "Name a colour.", "Is the sea wide?"]
MODES = ("chat", "chat", "conversation", "context", "structured", "structured", "vote", "plan")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended: in which mode, when it began, how long it took, its error, "" for none, and its refusals.

    `refusals` are the errors after which it was sent again.
    """

    mode: str
    started_s: float
    took_s: float
    error: str
    refusals: tuple[str, ...] = ()


class Talks:
    """The conversations that go on at a time. Each ends after some turns, so that the load does not grow with time."""

    def __init__(self, seed):
        self._seed = seed
        self._turns = [0] * TALKS

    def next_id(self, random):
        """Return the session of one more turn."""
        talk = random.randrange(TALKS)
        self._turns[talk] += 1
        return f"soak-{self._seed}-{talk}-{self._turns[talk] // TURNS}"


def make_request(mode, random, talks):
    """Return a request of one mode."""
    request = execution_pb2.SystemRequest(request_id=str(uuid.UUID(int=random.getrandbits(128))))
    request.messages.add(role=message_pb2.ROLE_USER, content=random.choice(TEXTS))
    request.hints.max_tokens = random.choice((8, 16, 24))
    request.hints.seed = random.randrange(1, 1000)
    request.mode = execution_pb2.MODE_CHAT
    if mode == "conversation":
        request.session_id = talks.next_id(random)
    elif mode == "context":
        request.context.CopyFrom(CONTEXT)
    elif mode == "structured":
        request.mode = execution_pb2.MODE_STRUCTURED
        request.hints.max_tokens = 48
        request.output.CopyFrom(contract_pb2.OutputContract(schema_json=SCHEMA))
    elif mode == "vote":
        request.mode = execution_pb2.MODE_REDUNDANT
        request.voting.n = 3
        request.hints.max_tokens = 48
        request.output.CopyFrom(contract_pb2.OutputContract(schema_json=SCHEMA))
    elif mode == "plan":
        request.mode = execution_pb2.MODE_PLAN
        request.plan.CopyFrom(plan_pb2.ExecutionPlan(steps=[FIND, TELL]))
    return request


async def send(stub, mode, request):
    """Send a request, again under its id where it was cut or refused for now, and tell how it ended.

    Waits grow, as those of a well-behaved client do: callers that ask again at once keep an overloaded service so.
    """
    started_s, refusals, waits = time.monotonic(), [], Random(request.request_id)  # noqa: S311
    while True:
        wait_s = min(MOST_AGAIN_AFTER_S, AGAIN_AFTER_S * 2 ** len(refusals)) * waits.uniform(1.0, 2.0)
        left_s = DEADLINE_S - (time.monotonic() - started_s)
        try:
            response = await stub.Execute(request, timeout=max(left_s, 0.1))
            error = error_pb2.ErrorCode.Name(response.error.code) if response.HasField("error") else ""
            text, may_help = f"{error}: {response.error.message}" if error else "", response.error.retryable
        except grpc.aio.AioRpcError as refused:
            text, may_help = f"{refused.code().name}: {refused.details()}", refused.code() in CUT
        if not may_help or left_s <= wait_s:
            return Outcome(mode, started_s, time.monotonic() - started_s, text, tuple(refusals))
        refusals.append(text.partition(":")[0])
        await asyncio.sleep(wait_s)


async def capacity_of(address, clients, seconds, seed):
    """Return how many requests a second the system ends for so many clients that always wait for an answer."""
    random, talks, ended = Random(seed), Talks(seed), 0  # noqa: S311 - a load that can be made again
    end_s = time.monotonic() + seconds

    async def ask(stub):
        nonlocal ended
        while time.monotonic() < end_s:
            mode = random.choice(MODES)
            outcome = await send(stub, mode, make_request(mode, random, talks))
            ended += not outcome.error

    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.OrchestratorServiceStub(channel)
        await asyncio.gather(*(ask(stub) for _ in range(clients)))
    return ended / seconds


async def load(address, rate, seconds, seed):
    """Send requests at a rate, whether earlier ones ended or not, and return how each ended."""
    random, talks, running = Random(seed), Talks(seed), []  # noqa: S311
    begin_s = time.monotonic()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.OrchestratorServiceStub(channel)
        while (since_s := time.monotonic() - begin_s) < seconds:
            await asyncio.sleep(max(0.0, len(running) / rate - since_s))
            mode = random.choice(MODES)
            running.append(asyncio.create_task(send(stub, mode, make_request(mode, random, talks))))
        return await asyncio.gather(*running)
