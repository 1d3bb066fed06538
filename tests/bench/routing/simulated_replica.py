"""A replica of the inference service in virtual time: the real scheduler and cache, and a step that costs no time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from services.inference.core.decoding.output import Row, Step
from services.inference.core.decoding.sampling import Choices, Logits
from services.inference.core.generation import FinishReason
from services.inference.core.scheduling.batching import Limits, Plan, Scheduler
from services.inference.core.scheduling.branches import DecodeRequest, Finished, Prompted
from services.inference.core.scheduling.cache_owners import cache_keys
from services.inference.core.scheduling.prefix_tree import PrefixTree
from services.orchestrator.core.routing.replicas import Load

BLOCK_TOKENS = 64
KNOWN_PROMPTS = 256
_ROW = Row(Choices(np.array([1]), np.array([1.0])), None)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step, of each token in it, and of each kept token that is copied back into the cache."""

    step_s: float = 0.008
    token_s: float = 0.0035


@dataclass(frozen=True, slots=True)
class Room:
    """The sizes of a replica."""

    kv_tokens: int = 8192
    idle_tokens: int = 0
    parked_tokens: int = 20_000
    step_tokens: int = 128
    max_running: int = 16


class _CountedOutput:
    """An output of a given number of tokens, all alike."""

    constraint_satisfied = False
    matched_stop = None
    is_random = False

    def __init__(self, length: int) -> None:
        self._length = length
        self.output_tokens = 0

    def fork(self) -> _CountedOutput:
        raise NotImplementedError("a request of the simulation has one candidate")

    def rank(self, _logits: Logits) -> Row:
        return _ROW

    def accept(self, token: int, _row: Row) -> Step:
        self.output_tokens += 1
        if self.output_tokens >= self._length:
            return Step((token,), "", FinishReason.LENGTH)
        return Step((token,), "")


class SimulatedReplica:
    """Steps through the requests that it was given; `slowness` multiplies the time of each step."""

    def __init__(self, room: Room, costs: Costs, slowness: float = 1.0) -> None:
        tree = PrefixTree(
            capacity_tokens=room.kv_tokens,
            max_sequences=4 * room.max_running,
            max_idle_tokens=room.idle_tokens,
            max_parked_tokens=room.parked_tokens,
        )
        self.scheduler = Scheduler(tree, Limits(room.step_tokens, room.max_running, 10_000))
        self.computed_tokens = 0
        self.busy_until_s = 0.0
        self._costs = costs
        self._slowness = slowness
        self._plan: Plan | None = None
        self._prompts: OrderedDict[int, tuple[tuple[int, ...], list[int]]] = OrderedDict()

    def submit(self, prompt: tuple[int, ...], output_tokens: int) -> int:
        """Take a request and return its number."""
        number = self.scheduler.submit(
            DecodeRequest(prompt, _CountedOutput(output_tokens), (lambda: 0.0,), output_tokens)
        )
        keys = block_keys(prompt)
        self._prompts[number] = (keys, cache_keys(prompt, 1))
        if len(self._prompts) > KNOWN_PROMPTS:
            self._prompts.popitem(last=False)
        return number

    def begin(self, now_s: float) -> float | None:
        """Begin a step and return its end; None without work."""
        if not self.scheduler.has_work:
            return None
        self._plan = self.scheduler.decide(now_s)
        tokens = sum(len(part.tokens) for part in self._plan.slices)
        self.computed_tokens += tokens
        cost_s = self._slowness * (self._costs.step_s + self._costs.token_s * tokens)
        self.busy_until_s = now_s + cost_s
        return self.busy_until_s

    def finish(self) -> tuple[list[Prompted], list[Finished]]:
        """End the step; return the requests whose prompts are computed, and those that have ended."""
        assert self._plan is not None
        rows = sum(part.logit_rows for part in self._plan.slices)
        events = [*self._plan.events, *self.scheduler.apply(self._plan, np.zeros((rows, 1), np.float32))]
        prompted = [event for event in events if isinstance(event, Prompted)]
        self._plan = None
        return prompted, [event for event in events if isinstance(event, Finished)]

    def load(self) -> Load:
        """Return the load as a replica reports it."""
        scheduler = self.scheduler
        return Load(scheduler.pending_prompt_tokens, scheduler.running, scheduler.waiting, scheduler.limits.max_running)

    def held(self) -> frozenset[int]:
        """Return the keys of the beginnings that the cache has, of the prompts seen last."""
        held: set[int] = set()
        for keys, tokens in self._prompts.values():
            held.update(keys[: self.scheduler.tree.kept_length(tokens, len(tokens)) // BLOCK_TOKENS])
        return frozenset(held)


def block_keys(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return the keys of the blocks of a prompt of the simulation."""
    return tuple(hash(prompt[:end]) for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS))
