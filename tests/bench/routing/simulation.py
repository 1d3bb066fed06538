"""Runs a load through callers, each with its own policy, over replicas in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.bench.routing.load import Arrival
from tests.bench.routing.policies import Policy
from tests.bench.routing.simulated_replica import Costs, Room, SimulatedReplica

NEWS_S = 0.25
ROOM = Room()
COSTS = Costs()


@dataclass(slots=True)
class Result:
    """What a load met: seconds to each first token, tokens of prompts that were computed, and the time of all."""

    first_token_s: list[float] = field(default_factory=list)
    computed_tokens: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0

    def percentile(self, share: float) -> float:
        """Return a percentile of the times to the first token."""
        ordered = sorted(self.first_token_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Simulation:
    """Events by their time; equal times in the order of their making."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        policies: Sequence[Policy],
        replicas: int = 3,
        *,
        room: Room = ROOM,
        costs: Costs = COSTS,
        news: tuple[float, float] | None = None,
        slowness: Sequence[float] = (),
    ) -> None:
        self._arrivals = arrivals
        self._policies = policies
        self._replicas = [
            SimulatedReplica(room, costs, slowness[index] if slowness else 1.0) for index in range(replicas)
        ]
        self._frozen = news or (float("inf"), float("inf"))
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._stepping = [False] * replicas
        self._owners: dict[tuple[int, int], int] = {}
        self._left = len(arrivals)
        self.result = Result()

    def run(self, *, has_news: bool = True) -> Result:
        """Return what the load met."""
        for number, arrival in enumerate(self._arrivals):
            self._at(arrival.at_s, lambda now_s, number=number: self._arrive(number, now_s))
        if has_news:
            self._at(NEWS_S, self._tell)
        while self._left:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)
        self.result.duration_s = now_s
        self.result.computed_tokens = sum(replica.computed_tokens for replica in self._replicas)
        return self.result

    def _at(self, at_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _policy(self, number: int) -> Policy:
        return self._policies[number % len(self._policies)]

    def _arrive(self, number: int, now_s: float) -> None:
        arrival = self._arrivals[number]
        index = self._policy(number).choose(number, arrival, now_s)
        request = self._replicas[index].submit(arrival.prompt, arrival.output_tokens)
        self._owners[index, request] = number
        self._step(index, now_s)

    def _step(self, index: int, now_s: float) -> None:
        if not self._stepping[index]:
            end_s = self._replicas[index].begin(now_s)
            if end_s is not None:
                self._stepping[index] = True
                self._at(end_s, lambda now_s: self._finish(index, now_s))

    def _finish(self, index: int, now_s: float) -> None:
        self._stepping[index] = False
        prompted, finished = self._replicas[index].finish()
        for event in prompted:
            number = self._owners[index, event.number]
            self.result.first_token_s.append(now_s - self._arrivals[number].at_s)
            self._policy(number).start(number, event.cached_prompt_tokens, now_s)
        for event in finished:
            number = self._owners.pop((index, event.number))
            self._policy(number).end(number, now_s)
            self.result.output_tokens += event.output_tokens
            self._left -= 1
        self._step(index, now_s)

    def _tell(self, now_s: float) -> None:
        if not self._frozen[0] <= now_s <= self._frozen[1]:
            for index, replica in enumerate(self._replicas):
                load, held = replica.load(), replica.held()
                for policy in self._policies:
                    policy.note(index, load, held, now_s)
        self._at(now_s + NEWS_S, self._tell)
