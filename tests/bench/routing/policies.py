"""Policies of routing as others have them, in a few lines each, and ours behind the same interface."""

from __future__ import annotations

import hashlib
import random
from typing import Protocol

from services.orchestrator.core.routing.prefixes import PromptPrefixes
from services.orchestrator.core.routing.replicas import Call, Load, Replicas
from tests.bench.routing.load import Arrival
from tests.bench.routing.simulated_replica import block_keys


class Policy(Protocol):
    """One caller's choice of a replica."""

    def choose(self, number: int, arrival: Arrival, now_s: float) -> int:
        """Return the replica for a request."""

    def start(self, number: int, cached_tokens: int, now_s: float) -> None:
        """Note that the prompt of a request was computed."""

    def end(self, number: int, now_s: float) -> None:
        """Note that a request has ended."""

    def note(self, replica: int, load: Load, held: frozenset[int], now_s: float) -> None:
        """Take news of a replica."""


class RoundRobin:
    """gRPC's round_robin."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._next = seed % replicas

    def choose(self, _number: int, _arrival: Arrival, _now_s: float) -> int:
        self._next = (self._next + 1) % self._replicas
        return self._next

    def start(self, number: int, cached_tokens: int, now_s: float) -> None:
        pass

    def end(self, number: int, now_s: float) -> None:
        pass

    def note(self, replica: int, load: Load, held: frozenset[int], now_s: float) -> None:
        pass


class LeastRequests(RoundRobin):
    """The replica with the fewest own requests; by chance among equals. A caller knows no other's requests."""

    def __init__(self, replicas: int, seed: int) -> None:
        super().__init__(replicas, seed)
        self._running: dict[int, int] = {}
        self._source = random.Random(seed)  # noqa: S311 - no secret

    def counts(self) -> list[int]:
        """Return the own requests of each replica."""
        running = list(self._running.values())
        return [running.count(replica) for replica in range(self._replicas)]

    def choose(self, number: int, _arrival: Arrival, _now_s: float) -> int:
        return self.take(number, self._counted_least())

    def take(self, number: int, replica: int) -> int:
        """Note and return a choice."""
        self._running[number] = replica
        return replica

    def end(self, number: int, now_s: float) -> None:
        self._running.pop(number, None)

    def _counted_least(self) -> int:
        counts = self.counts()
        return self._source.choice([replica for replica, count in enumerate(counts) if count == min(counts)])


class RingHash(LeastRequests):
    """A hash of the shared beginning, as with a header that the caller sets; with a bound, as Envoy's ring hash.

    A replica takes at most `bound` times the mean of the running requests; the next on the ring takes the others.
    """

    def __init__(self, replicas: int, seed: int, bound: float | None = None) -> None:
        super().__init__(replicas, seed)
        self._bound = bound

    def choose(self, number: int, arrival: Arrival, _now_s: float) -> int:
        counts = self.counts()
        limit = float("inf")
        if self._bound is not None:
            limit = self._bound * (sum(counts) + 1) / self._replicas
        order = sorted(range(self._replicas), key=lambda replica: _hash(f"{arrival.prefix} {replica}"))
        fitting = [replica for replica in order if counts[replica] + 1 <= max(1, limit)]
        return self.take(number, (fitting or order)[0])


class CacheAware(LeastRequests):
    """SMG's policy: the longest match in its own tree of what it sent, unless the requests are out of balance."""

    MATCH = 0.5
    ABSOLUTE = 32
    RELATIVE = 1.1

    def __init__(self, replicas: int, seed: int) -> None:
        super().__init__(replicas, seed)
        self._sent: list[set[int]] = [set() for _ in range(replicas)]

    def choose(self, number: int, arrival: Arrival, _now_s: float) -> int:
        counts = self.counts()
        keys = block_keys(arrival.prompt)
        matches = [_matching(keys, sent) / max(1, len(keys)) for sent in self._sent]
        if max(counts) - min(counts) > self.ABSOLUTE and max(counts) > self.RELATIVE * min(counts):
            replica = counts.index(min(counts))
        elif max(matches) > self.MATCH:
            replica = matches.index(max(matches))
        else:
            sizes = [len(sent) for sent in self._sent]
            replica = sizes.index(min(sizes))
        self._sent[replica].update(keys)
        return self.take(number, replica)


class Estimated:
    """Ours."""

    def __init__(self, replicas: int, _seed: int) -> None:
        self._replicas = Replicas()
        self._replicas.resolve([str(replica) for replica in range(replicas)])
        self._calls: dict[int, tuple[Call, int]] = {}

    def choose(self, number: int, arrival: Arrival, now_s: float) -> int:
        prefixes = PromptPrefixes(block_keys(arrival.prompt), 4 * len(arrival.prompt))
        call = self._replicas.choose(prefixes, now_s)
        assert call is not None
        self._calls[number] = (call, len(arrival.prompt))
        return int(call.replica)

    def start(self, number: int, cached_tokens: int, now_s: float) -> None:
        call, prompt_tokens = self._calls[number]
        self._replicas.start(call, prompt_tokens, cached_tokens, now_s)

    def end(self, number: int, now_s: float) -> None:
        self._replicas.end(self._calls.pop(number)[0], now_s)

    def note(self, replica: int, load: Load, held: frozenset[int], now_s: float) -> None:
        self._replicas.note_load(str(replica), load, now_s)
        self._replicas.note_keys(str(replica), held, (), is_first=True)


def _matching(keys: tuple[int, ...], held: set[int]) -> int:
    return next((index for index, key in enumerate(keys) if key not in held), len(keys))


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
