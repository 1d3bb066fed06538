"""Decides which models of a route are asked, and when. Knows neither tasks nor requests.

Theory of operation. The models of a route are asked in their order until one says something. The next one is asked when
one fails in a way that another model may not share, and, with hedging, when the last one has said nothing for a while.

Invariants:
    1. Models are asked in their order, each at most once.
    2. Each event asks at most one more model.
    3. A failure that the request itself causes asks no further model.
    4. The race is lost when no model runs; until then at least one runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Race:
    """The state of a race.

    Attributes:
        count: Number of models.
        hedge_after_s: Silence after which the next model is asked as well; None waits for a failure.
        asked: How many were asked: the first ones.
        running: The positions of those that have not failed.
        next_at_s: When the next one is asked; infinity for never.
    """

    count: int
    hedge_after_s: float | None = None
    asked: int = 0
    running: frozenset[int] = frozenset()
    next_at_s: float = math.inf

    @property
    def is_lost(self) -> bool:
        """Whether every asked model failed, and no other will be asked."""
        return self.asked > 0 and not self.running

    def begin(self, now_s: float) -> Race:
        """Ask the first model."""
        return _asking_next(self, now_s)

    def at(self, now_s: float) -> Race:
        """Ask the next model if its time has come."""
        if now_s < self.next_at_s:
            return self
        return _asking_next(self, now_s)

    def after_failure(self, position: int, now_s: float, *, may_others_succeed: bool) -> Race:
        """Return the race without a model that failed; the next one is asked if it may succeed."""
        rest = replace(self, running=self.running - {position})
        if not may_others_succeed:
            return replace(rest, next_at_s=math.inf)
        return _asking_next(rest, now_s)

    def winner(self, speaking: Iterable[int]) -> int | None:
        """Return the first of the models that say something; None for none."""
        return min((position for position in speaking if position in self.running), default=None)


def _asking_next(race: Race, now_s: float) -> Race:
    """Return the race with one more model asked, if there is one."""
    if race.asked == race.count:
        return replace(race, next_at_s=math.inf)
    asked = race.asked + 1
    next_at_s = math.inf
    if race.hedge_after_s is not None and asked < race.count:
        next_at_s = now_s + race.hedge_after_s
    return replace(race, asked=asked, running=race.running | {race.asked}, next_at_s=next_at_s)
