"""Which settings of a side suit chat best; the bench runs each side with those."""

from __future__ import annotations

import asyncio
import operator
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from tests.bench.load import Side, measure, warm_up_queries
from tests.bench.ours import Ours, running_service
from tests.bench.scenarios import SCENARIOS

SettingsT = TypeVar("SettingsT")


async def chat_rates(side: Side, levels: Sequence[int], requests: int) -> list[float]:
    """Return the output tokens per second of chat at each number of clients."""
    chat = next(scenario for scenario in SCENARIOS if scenario.name == "chat")
    rates = []
    for clients in levels:
        await measure(side, (), warm_up_queries(clients), clients)
        run = chat.make(Random(clients), requests)  # noqa: S311
        measured = await measure(side, run.warm_up, run.queries, clients)
        rates.append(sum(answer.output_tokens or 0 for answer in measured.answers) / measured.wall_s)
    return rates


def overall(title: str, levels: Sequence[int], rates: Sequence[float], say: Callable[[str], None]) -> float:
    """Return the geometric mean of rates, and give `say` a line with them."""
    shown = ", ".join(f"{one:.1f} at {level}" for one, level in zip(rates, levels, strict=True))
    say(f"{title}: {shown} tokens/s")
    return statistics.geometric_mean(rates)


def best_by_turns(
    best: SettingsT, variants: Sequence[Callable[[SettingsT], SettingsT]], rate: Callable[[SettingsT], float]
) -> SettingsT:
    """Return the settings with the highest rate: each variant is one of the best settings so far."""
    best_rate = rate(best)
    for vary in variants:
        tried = vary(best)
        tried_rate = rate(tried)
        if tried_rate > best_rate:
            best, best_rate = tried, tried_rate
    return best


def own_settings(threads: int, *, levels: Sequence[int], requests: int, say: Callable[[str], None]) -> dict[str, str]:
    """Return the settings of our service, which are fixed while it is compared.

    The service chooses attention and steps by the load of some minutes; here they are chosen by the load that chooses
    the settings of the peer. Variables of this process win.
    """

    def rate(settings: dict[str, str]) -> float:
        with running_service("inference", **settings) as (address, _):
            rates = asyncio.run(_own_rates(address, levels, requests))
        return overall(f"ours, {shown(settings)}", levels, rates, say)

    changes = ({"flash_attention": "true"}, {"step_tokens": "128"})
    free = [
        change for change in changes if not any(f"PAGANTIC_INFERENCE_{name.upper()}" in os.environ for name in change)
    ]
    variants = [partial(operator.or_, change) for change in free]
    return best_by_turns({"threads": str(threads), "tuning": "false"}, variants, rate)


def shown(settings: Mapping[str, str]) -> str:
    """Return settings as their variables are named."""
    return " ".join(f"{name.upper()}={value}" for name, value in settings.items())


async def _own_rates(address: str, levels: Sequence[int], requests: int) -> list[float]:
    ours = Ours(address)
    try:
        await ours.find_end_tokens()
        return await chat_rates(ours, levels, requests)
    finally:
        await ours.close()
