"""The load: what is asked, what came back, and the closed loop of clients that asks. Knows neither side's protocol."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class BenchError(Exception):
    """The bench cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Query:
    """One request, in terms that both sides understand.

    Attributes:
        messages: (role, content) pairs, rendered by the model's template; empty when `text` is given.
        text: Raw prompt, continued as it is.
        max_tokens: Most output tokens of each candidate.
        temperature: 0 is greedy.
        seed: Start of the random stream.
        schema: JSON Schema that the answer is held to.
        candidates: Answers asked for.
        is_full_length: The model may not end before `max_tokens`.
    """

    messages: tuple[tuple[str, str], ...] = ()
    text: str = ""
    max_tokens: int = 64
    temperature: float = 0.7
    seed: int = 0
    schema: Mapping[str, Any] | None = None
    candidates: int = 1
    is_full_length: bool = False


_WARM_UP_TOKENS = 32
# Both sides sample with these, besides the temperature; there are no penalties.
TOP_K = 40
TOP_P = 0.95
MIN_P = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one query, and when, in seconds of `time.perf_counter`.

    Attributes:
        sent_s: Before the request was sent.
        first_s: When the first text of any candidate was there.
        ended_s: When the last candidate had ended.
        texts: One per candidate.
        output_tokens: Of all candidates together; None when the side does not tell.
        prompt_tokens: Tokens of the prompt, counted once for all candidates; None when the side does not tell.
        computed_prompt_tokens: Of these, not taken from a cache; None when the side does not tell per request.
    """

    sent_s: float
    first_s: float
    ended_s: float
    texts: tuple[str, ...]
    output_tokens: int | None
    prompt_tokens: int | None
    computed_prompt_tokens: int | None


def warm_up_queries(clients: int) -> list[Query]:
    """Return a short query for each client, which touches a side's memory and starts its threads."""
    return [Query(text=f"{index} and then", max_tokens=_WARM_UP_TOKENS) for index in range(clients)]


class Side(Protocol):
    """One of the two that are compared."""

    name: str

    async def prepare(self, queries: Sequence[Query]) -> None:
        """Do what need not be timed, such as rendering prompts."""
        ...

    async def ask(self, query: Query) -> Answer:
        """Send a query and wait for the whole answer."""
        ...

    async def computed_prompt_tokens(self) -> int | None:
        """Return the prompt tokens computed since the side was started, or None when it does not count them."""
        ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side under one load once.

    Attributes:
        queries: What was asked.
        answers: In the order of the queries.
        wall_s: From the first query sent to the last answer.
        client_cpu_s: CPU time of this process meanwhile, which the measured side could not use.
        computed_prompt_tokens: Prompt tokens that were computed; None when the side tells nobody.
    """

    queries: tuple[Query, ...]
    answers: tuple[Answer, ...]
    wall_s: float
    client_cpu_s: float
    computed_prompt_tokens: int | None


async def measure(side: Side, warm_up: Sequence[Query], queries: Sequence[Query], clients: int) -> Measurement:
    """Ask `warm_up` one after the other, untimed, then `queries` from `clients` clients that never pause."""
    await side.prepare([*warm_up, *queries])
    for query in warm_up:
        await side.ask(query)
    counted = await side.computed_prompt_tokens()
    cpu_s = time.process_time()
    started_s = time.perf_counter()
    answers = await _closed_loop(side, queries, clients)
    wall_s = time.perf_counter() - started_s
    cpu_s = time.process_time() - cpu_s
    return Measurement(
        queries=tuple(queries),
        answers=tuple(answers),
        wall_s=wall_s,
        client_cpu_s=cpu_s,
        computed_prompt_tokens=await _computed(side, answers, counted),
    )


async def _closed_loop(side: Side, queries: Sequence[Query], clients: int) -> list[Answer]:
    waiting = deque(enumerate(queries))
    answers: dict[int, Answer] = {}

    async def client() -> None:
        while waiting:
            index, query = waiting.popleft()
            answers[index] = await side.ask(query)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
    except ExceptionGroup as failed:
        raise BenchError(f"{side.name}: {failed.exceptions[0]}") from failed.exceptions[0]
    return [answers[index] for index in range(len(queries))]


async def _computed(side: Side, answers: Sequence[Answer], counted_before: int | None) -> int | None:
    told = [answer.computed_prompt_tokens for answer in answers]
    known = [one for one in told if one is not None]
    if len(known) == len(told):
        return sum(known)
    counted = await side.computed_prompt_tokens()
    return None if counted is None or counted_before is None else counted - counted_before
