"""Loads of requests that share beginnings of their prompts, with Poisson arrivals."""

from __future__ import annotations

import random
from dataclasses import dataclass

TOKENS = 40_000  # ids that prompts of the simulation draw from


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, the beginning that it shares, its whole prompt, and the tokens of its answer."""

    at_s: float
    prefix: int
    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class LoadShape:
    """A load; `sharing` is the share of a prompt's tokens that belongs to one of `prefixes` common beginnings.

    Beginnings are drawn by Zipf's law with exponent 1: a few are common, most are rare.
    """

    sharing: float
    prefixes: int
    rate: float
    requests: int
    prompt_tokens: int = 1000
    output_tokens: int = 32

    @property
    def working_set_tokens(self) -> int:
        """Tokens of all common beginnings."""
        return round(self.sharing * self.prompt_tokens) * self.prefixes


def arrivals_of(shape: LoadShape, seed: int) -> list[Arrival]:
    """Return the requests of a load, in the order of their arrival; the sizes vary by a quarter."""
    source = random.Random(seed)  # noqa: S311 - no secret
    shared = round(shape.sharing * shape.prompt_tokens)
    beginnings = [tuple(source.choices(range(TOKENS), k=shared)) for _ in range(shape.prefixes)]
    weights = [1 / rank for rank in range(1, shape.prefixes + 1)]
    at_s = 0.0
    arrivals = []
    for _ in range(shape.requests):
        at_s += source.expovariate(shape.rate)
        prefix = source.choices(range(shape.prefixes), weights)[0]
        own = round((shape.prompt_tokens - shared) * source.uniform(0.75, 1.25))
        output = round(shape.output_tokens * source.uniform(0.5, 1.5))
        prompt = beginnings[prefix] + tuple(source.choices(range(TOKENS), k=max(1, own)))
        arrivals.append(Arrival(at_s, prefix, prompt, max(1, output)))
    return arrivals
