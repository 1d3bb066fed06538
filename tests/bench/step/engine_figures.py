"""What the engine's own work costs: Python's part of a step, masks, drafts, and whether batches change answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random

from tests.bench.load import Query, measure
from tests.bench.ours import Ours
from tests.bench.report import equal_characters
from tests.bench.scenarios import SCENARIOS
from tests.bench.step.times import DECODE, MASK, WAIT, Snapshot, Times, timed_service
from tests.bench.texts import CITIES

_REQUESTS = 16
_AGREEMENT_TOKENS = 64
_MS, _US = 1e3, 1e6


def print_engine_figures(settings: Mapping[str, str], clients: int, seed: int, say: Callable[[str], None]) -> None:
    """Measure a service whose steps are timed, and give `say` a line for each figure."""
    with timed_service(settings) as (address, times):
        asyncio.run(_print(address, times, clients, seed, say))


async def _print(address: str, times: Times, clients: int, seed: int, say: Callable[[str], None]) -> None:
    ours = Ours(address)
    try:
        await ours.find_end_tokens()
        say("\nthe engine's own work:")
        for count in sorted({1, clients}):
            spent = await _spend(ours, times, "chat", count, seed)
            say(f"  Python and waits beside llama_decode, {count} clients: {_python_ms(spent):.2f} ms a step of chat")
        spent = await _spend(ours, times, "schema", 1, seed)
        if spent.calls.get(MASK):
            say(f"  mask: {spent.seconds[MASK] / spent.calls[MASK] * _US:.0f} us a row of schema")
        spent = await _spend(ours, times, "extract", 1, seed)
        share = spent.accepted_tokens / max(1, spent.drafted_tokens)
        say(f"  drafts of extract: {spent.accepted_tokens} of {spent.drafted_tokens} tokens accepted, {share:.0%}")
        say(f"  greedy answers alone and among {clients} agree in {await _agreement(ours, clients):.0%} of their text")
    finally:
        await ours.close()


async def _spend(ours: Ours, times: Times, name: str, clients: int, seed: int) -> Snapshot:
    scenario = next(known for known in SCENARIOS if known.name == name)
    run = scenario.make(Random(f"{seed} {name} {clients}"), _REQUESTS)  # noqa: S311
    await measure(ours, run.warm_up, run.queries[:1], 1)
    before = await times.take()
    await measure(ours, (), run.queries[1:], clients)
    return (await times.take()).since(before)


def _python_ms(spent: Snapshot) -> float:
    decodes = [part for part in spent.calls if part.startswith(DECODE)]
    steps = sum(spent.calls[part] for part in decodes)
    others = [part for part in spent.seconds if part not in decodes and part != WAIT and ":" not in part]
    return sum(spent.seconds[part] for part in others) / steps * _MS


async def _agreement(ours: Ours, clients: int) -> float:
    """Return how much of the answers' text is the same; a model's ties may fall either way in another batch."""
    queries = [
        Query(
            messages=(("user", f"What is {city} known for?"),),
            max_tokens=_AGREEMENT_TOKENS,
            temperature=0.0,
            is_full_length=True,
        )
        for city in CITIES[:clients]
    ]
    alone = await measure(ours, (), queries, 1)
    together = await measure(ours, (), queries, clients)
    pairs = [(one.texts[0], other.texts[0]) for one, other in zip(alone.answers, together.answers, strict=True)]
    equal = sum(equal_characters(*pair) for pair in pairs)
    return equal / sum(len(one) for one, _ in pairs)
