"""The calls of the load, each of some kind, as a user of the Python client makes them."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random

from pagantic.context.v1 import policy_pb2
from pagantic_common.client import (
    chat_request,
    plan_request,
    plan_step,
    raise_for_error,
    structured_request,
    vote_request,
)
from pagantic_common.domain.errors import Overloaded, PaganticError, Unavailable

COLLECTION = "soak"
TOOL = "count_run"
CALL_S = 180.0
AGAIN_AFTER_S = 0.5  # the first time; twice as long each time after
MOST_AGAIN_AFTER_S = 4.0
SCHEMA = {
    "type": "object",
    "properties": {"sad": {"type": "boolean"}, "kind": {"enum": ["sea", "land"]}},
    "required": ["sad", "kind"],
    "additionalProperties": False,
}
CONTEXT = policy_pb2.ContextPolicy(collection=COLLECTION, max_chunks=1, required=True)
STEPS = (
    plan_step("find", "retrieve", collection=COLLECTION, max_chunks=1),
    plan_step("count", "tool", tool=TOOL, arguments={}),
    plan_step("tell", "infer", depends_on=["find", "count"], prompt="Tell a story about the sea."),
)
# Long answers are the most, as those are what a lost replica cuts.
KINDS = ("chat", "stream", "stream", "structured", "vote", "plan", "tool", "session", "context")
STREAMED = ("stream", "session")  # their text is that of the answer, and no other


@dataclass(slots=True)
class Call:
    """One call, and what its caller saw.

    Attributes:
        first_s: When its first text came.
        refusals: The errors after which it was sent again.
        error: How it failed; empty if it did not.
        streamed: The text that came and was not discarded.
        content: The answer.
    """

    kind: str
    request_id: str
    sent_s: float
    session_id: str = ""
    first_s: float | None = None
    ended_s: float = 0.0
    is_acknowledged: bool = False
    refusals: list[str] = field(default_factory=list)
    error: str = ""
    why: str = ""
    streamed: str = ""
    content: str = ""
    continued: int = 0
    discarded: int = 0

    def overlaps(self, began_s, ended_s):
        return self.sent_s <= ended_s and self.ended_s >= began_s


def make_request(kind, random: Random, request_id, session_id=""):
    """Return the request of one call; its text says which."""
    options = {"request_id": request_id, "seed": random.randrange(1, 1000), "max_tokens": random.choice((8, 16, 24))}
    text = f"Tell a story about the sea. ({request_id[:8]})"
    longer = options | {"max_tokens": 48}
    make = {
        "chat": lambda: chat_request(text, tools=[], **options),
        "stream": lambda: chat_request(text, tools=[], **options | {"max_tokens": random.randrange(60, 101)}),
        "session": lambda: chat_request(text, session_id=session_id, tools=[], **options),
        "structured": lambda: structured_request(text, SCHEMA, **longer),
        "vote": lambda: vote_request(text, SCHEMA, n=3, **longer),
        "plan": lambda: plan_request(text, STEPS, **options),
        "context": lambda: chat_request(text, context=CONTEXT, tools=[], **options),
        "tool": lambda: chat_request(text, tools=[TOOL], tool_choice=TOOL, **longer),
    }
    return make[kind]()


class Caller:
    """Makes calls with one client, and keeps what became of each."""

    def __init__(self, client, seed, kinds=KINDS):
        self.calls = []
        self._kinds = kinds
        self._client = client
        self._random = Random(seed)  # noqa: S311 - a load that can be made again
        self._running = set()

    async def load(self, rate, is_over: asyncio.Event):
        """Make calls at a rate, whether earlier ones have ended or not, until it is over and all have ended."""
        while not is_over.is_set():
            self._begin(self._random.choice(self._kinds))
            await asyncio.sleep(self._random.expovariate(rate))
        await asyncio.gather(*self._running)

    def _begin(self, kind):
        turns = self._talk() if kind == "session" else self._make(kind)
        task = asyncio.create_task(turns)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _talk(self):
        """Send two turns of a conversation, the second as soon as the first is acknowledged."""
        session_id, is_first_known = str(uuid.UUID(int=self._random.getrandbits(128))), asyncio.Event()
        first = asyncio.create_task(self._make("session", session_id, is_first_known))
        first.add_done_callback(lambda _: is_first_known.set())
        await is_first_known.wait()
        await asyncio.gather(first, self._make("session", session_id))

    async def _make(self, kind, session_id="", is_known: asyncio.Event | None = None):
        request_id = str(uuid.UUID(int=self._random.getrandbits(128)))
        request = make_request(kind, self._random, request_id, session_id)
        call = Call(kind, request_id, time.monotonic(), session_id)
        self.calls.append(call)
        try:
            response = raise_for_error(await self._send(call, request, is_known or asyncio.Event()))
            call.content = response.content or response.structured_output_json
        except PaganticError as error:
            call.error, call.why = str(error.code or type(error).__name__), str(error)
        call.ended_s = time.monotonic()

    async def _send(self, call, request, is_known):
        """Return the response, sending the request again as long as it is refused; raises the last refusal."""
        again_s, end_s = AGAIN_AFTER_S, call.sent_s + CALL_S
        while True:
            try:
                if call.kind in ("chat", "structured", "vote"):
                    return await self._client.execute(request)
                return await self._stream(call, request, is_known)
            except (Unavailable, Overloaded) as refused:
                wait_s = max(again_s, refused.retry_after_s or 0.0) * self._random.uniform(1.0, 1.5)
                if time.monotonic() + wait_s > end_s:
                    raise
                call.refusals.append(f"{type(refused).__name__}: {refused}")
            await asyncio.sleep(wait_s)
            again_s = min(2 * again_s, MOST_AGAIN_AFTER_S)

    async def _stream(self, call, request, is_known):
        call.streamed = ""
        async with aclosing(self._client.stream(request)) as events:
            async for event in events:
                call.is_acknowledged = True
                is_known.set()
                match event.WhichOneof("event"):
                    case "content_delta":
                        call.first_s = call.first_s or time.monotonic()
                        call.streamed += event.content_delta.text
                    case "attempt_discarded":
                        call.streamed = ""
                    case "completed":
                        return event.completed.response
        raise AssertionError(f"the stream of {call.request_id} ended without a response")
