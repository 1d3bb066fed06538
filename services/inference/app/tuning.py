"""Measures the fastest engine settings in idle moments, applies them between requests, and stores them.

Until a result is applied, the engine runs with safe defaults. A new request ends the measurement at once, but complete
rounds still count when the measurement continues. Results from a busy machine, and results that cannot be reproduced,
are discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import PaganticError, PreconditionFailed
from pagantic_common.telemetry.logging import get_logger
from services.inference.core.tuning import (
    MAX_ROUNDS,
    Measurements,
    Round,
    StepTimes,
    Tuning,
    agreed,
    choose,
    follow,
    may_measure,
    with_given,
)
from services.inference.ports import MeasuringFailed, Prober, TuningStore

MAX_DISTURBED = 3

log = get_logger(__name__)


class TuningState(StrEnum):
    """The state of the automatic settings: defaults, being measured, or measured."""

    DEFAULTS = "defaults"
    MEASURING = "measuring"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of measurements: `idle_s` after the last request, and `again_s` after a failed attempt.

    The load is checked every `review_s` seconds.
    """

    idle_s: float = 3.0
    again_s: float = 15.0
    review_s: float = 30.0


class Tuner:
    """The engine's tuning, and the measurement that finds a better tuning.

    Args:
        defaults: The tuning until a measurement succeeds.
        given: Settings by name, which override measured values.
        prober: Measures rounds. None if measuring is impossible, for the reason in `note`.
        store: Stores a tuning for the next start.
        in_use: Set while a request runs.
        apply: Changes the engine between requests.
        load: Returns the seconds of recent steps, by kind of step.
        clock: The clock for the times of measurements.
        measured: The stored tuning of an earlier start.
        note: The reason why no tuning has been measured yet.
        pace: The times of measurements.
    """

    def __init__(
        self,
        defaults: Tuning,
        *,
        given: Mapping[str, Any],
        prober: Prober | None,
        store: TuningStore | None,
        in_use: asyncio.Event,
        apply: Callable[[Tuning], Awaitable[None]],
        clock: Clock,
        load: Callable[[], StepTimes] = tuple,
        measured: Tuning | None = None,
        note: str = "",
        pace: Pace | None = None,
    ) -> None:
        self._defaults = defaults
        self._given = given
        self._prober = prober
        self._store = store
        self._in_use = in_use
        self._apply = apply
        self._clock = clock
        self._load = load
        self._pace = pace or Pace()
        self._requested = asyncio.Event()
        self._rounds: list[Round] = []
        self._spent_s = self._idle_s = 0.0
        self._is_measuring = self._is_reported = False
        self._is_measured = measured is not None
        self._chosen = measured or defaults
        self.note = note
        self.tuning = with_given(self._chosen, given)

    @property
    def state(self) -> TuningState:
        """Whether the current tuning is a default or measured, or is being measured."""
        if self._is_measuring:
            return TuningState.MEASURING
        if self._is_measured:
            return TuningState.MEASURED
        return TuningState.DEFAULTS

    def measure_again(self) -> None:
        """Request a measurement, regardless of the cost so far. Raises PreconditionFailed if it is impossible."""
        if self._prober is None:
            raise PreconditionFailed(f"nothing is measured here: {self.note}")
        self._rounds.clear()
        self._spent_s = 0.0
        self._is_measured = self._is_reported = False
        self.note = "requested: waiting until no request runs"
        self._requested.set()

    async def run(self) -> None:
        """Measure whenever a measurement is due, until cancelled."""
        if self._prober is None:
            return
        if self._store is not None and not self._is_measured and (reason := self._store.save(None)):
            # A tuning that cannot be stored would be measured again at every start, so nothing is measured.
            self.note = f"not measured, because {reason}: set XDG_CACHE_HOME, or ask with `pagantic tune`"
            log.warning("a tuning cannot be kept: the defaults stay", reason=reason)
            await self._requested.wait()
        while True:
            if self._is_measured:
                await self._follow_load()
            await self._until_due()
            self._requested.clear()
            await self._try_to_measure(self._prober)
            if not self._is_measured and not self._in_use.is_set():
                await self._pause()

    async def _follow_load(self) -> None:
        """Adapt the attention setting to the load until a measurement is requested."""
        is_refused = False
        while not self._requested.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.review_s):
                    await self._requested.wait()
            if self._requested.is_set() or is_refused or "flash_attention" in self._given:
                continue
            better = follow(self._chosen, self._load())
            if better is not self._chosen:
                # If the engine rejects the tuning, for example because memory is short, stop trying: each attempt
                # empties the cache.
                is_refused = not await self._use(better)

    async def _pause(self) -> None:
        """Wait before the next attempt unless a measurement is requested."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.again_s):
                await self._requested.wait()
        self._idle_s += self._pace.again_s

    async def _until_due(self) -> None:
        """Wait until no request runs and the budget for measuring allows another attempt."""
        while True:
            if self._in_use.is_set():
                await asyncio.sleep(self._pace.idle_s / 10)
                continue
            try:
                async with asyncio.timeout(self._pace.idle_s):
                    await self._in_use.wait()
            except TimeoutError:
                self._idle_s += self._pace.idle_s
                if may_measure(self._spent_s, self._idle_s):
                    return

    async def _try_to_measure(self, prober: Prober) -> None:
        if reason := await prober.why_not():
            self._report(reason)
            return
        started_s = self._clock.monotonic_s()
        self._is_measuring = True
        try:
            tuning = await self._measure(prober)
        except MeasuringFailed as error:
            self._report(str(error))
            return
        finally:
            self._is_measuring = False
            self._spent_s += self._clock.monotonic_s() - started_s
        if tuning is not None:
            await self._use(tuning)

    async def _measure(self, prober: Prober) -> Tuning | None:
        """Collect rounds until they agree, and return the tuning.

        Returns None if the rounds do not agree or a request arrives.
        """
        disturbed = 0
        async with aclosing(prober.rounds()) as rounds:
            while (measured_round := await self._next_round(rounds)) is not None and not self._requested.is_set():
                if measured_round.is_quiet:
                    self._rounds.append(measured_round)
                else:
                    disturbed += 1
                if measured_round.is_quiet and (measured := agreed(self._rounds)) is not None:
                    return self._tuning_of(measured)
                if disturbed == MAX_DISTURBED:
                    self._report(f"the machine is busy: other processes use {measured_round.others_cores:.1f} cores")
                    return None
                if len(self._rounds) >= MAX_ROUNDS:
                    self._rounds.clear()
                    self._report("the machine is not steady: measurements do not repeat")
                    return None
        return None

    def _tuning_of(self, measured: Measurements) -> Tuning:
        others = max(measured_round.others_cores for measured_round in self._rounds)
        tuning = choose(measured, self._defaults)
        return replace(tuning, measured_at=self._clock.now().isoformat(), others_cores=round(others, 2))

    async def _next_round(self, rounds: AsyncGenerator[Round, None]) -> Round | None:
        """Return the next round, or None once a request arrives."""
        reading = asyncio.ensure_future(anext(rounds, None))
        used = asyncio.ensure_future(self._in_use.wait())
        try:
            await asyncio.wait((reading, used), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return None
            return reading.result()
        finally:
            reading.cancel()
            used.cancel()
            await asyncio.gather(reading, used, return_exceptions=True)

    async def _use(self, tuning: Tuning) -> bool:
        """Run with a tuning and store it. Returns False if the engine rejects the tuning."""
        self._rounds.clear()
        effective = with_given(tuning, self._given)
        for choice in effective.choices:
            log.info("measured", setting=choice.name, value=choice.value, reason=choice.reason)
        try:
            await self._apply(effective)
        except PaganticError as error:
            self._report(f"the measured tuning cannot be used: {error}")
            return False
        self.tuning, self._chosen, self._is_measured = effective, tuning, not self._requested.is_set()
        self.note = ""
        if self._store is not None and self._store.save(tuning):
            self.note = "not kept for the next start"
        return True

    def _report(self, reason: str) -> None:
        self.note = reason
        if not self._is_reported:  # logged only once, because a machine may be busy for days
            self._is_reported = True
            log.info("not measured yet; DescribeEngine shows the progress", reason=reason)
