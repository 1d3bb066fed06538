"""Decides when each model of a route starts. Independent of asyncio and of requests.

Theory of operation. The models of a route start in their order until a model produces output. The next model starts
when a model fails for a reason that the request did not cause. With hedging, it also starts when the last started model
has been silent for a while (J. Dean and L. A. Barroso, "The Tail at Scale", CACM 2013).

Invariants:
    1. Models start in their order, each at most once.
    2. Each event starts at most one model.
    3. A failure caused by the request itself starts no further model.
    4. The race is lost when no model runs. Until then, at least one model runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Race:
    """The state of a race.

    Attributes:
        count: The number of models.
        hedge_after_s: The seconds of silence after which the next model also starts. If None, the next model starts
            only after a failure.
        started: The number of started models.
        running: The positions of the started models that have not failed.
        next_at_s: The start time of the next model, or infinity.
    """

    count: int
    hedge_after_s: float | None = None
    started: int = 0
    running: frozenset[int] = frozenset()
    next_at_s: float = math.inf

    @property
    def is_lost(self) -> bool:
        """Whether every started model failed, and no other model will start."""
        return self.started > 0 and not self.running

    def begin(self, now_s: float) -> Race:
        """Return the race with the first model started."""
        return _starting_next(self, now_s)

    def at(self, now_s: float) -> Race:
        """Return the race, with the next model started if it is due."""
        if now_s < self.next_at_s:
            return self
        return _starting_next(self, now_s)

    def after_failure(self, position: int, now_s: float, *, may_others_succeed: bool) -> Race:
        """Return the race without a failed model. Starts the next model if it may succeed."""
        rest = replace(self, running=self.running - {position})
        if not may_others_succeed:
            return replace(rest, next_at_s=math.inf)
        return _starting_next(rest, now_s)

    def winner(self, speaking: Iterable[int]) -> int | None:
        """Return the position of the first running model with output, or None if no running model has output."""
        return min((position for position in speaking if position in self.running), default=None)


def _starting_next(race: Race, now_s: float) -> Race:
    """Return the race with the next model started, if any model is left."""
    if race.started == race.count:
        return replace(race, next_at_s=math.inf)
    started = race.started + 1
    next_at_s = math.inf
    if race.hedge_after_s is not None and started < race.count:
        next_at_s = now_s + race.hedge_after_s
    return replace(race, started=started, running=race.running | {race.started}, next_at_s=next_at_s)
