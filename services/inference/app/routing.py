"""Serves Infer with the models of a route: the first model with output answers, and the others are cancelled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import (
    Internal,
    InvalidRequest,
    Overloaded,
    PaganticError,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.telemetry.logging import get_logger
from services.inference.app.models import ServedModel
from services.inference.app.remote import EstimatingPreparation
from services.inference.app.workload import Load
from services.inference.core.generation import ChatPrompt, Event, InferenceRequest, Started
from services.inference.core.remote.race import Race
from services.inference.core.remote.requests import estimate_prompt

Use = Callable[[str], AbstractAsyncContextManager[ServedModel]]

log = get_logger(__name__)


class _Entrant:
    """A model in the race. An asyncio task reads the model's events, and pauses after two until the model has won.

    Attributes:
        spoken: A future that completes with the first event after Started, or with a failure.
        failure: The failure before any output, or None if there was output.
    """

    def __init__(self, alias: str, use: Use, request: InferenceRequest) -> None:
        self.alias = alias
        self.spoken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure: Exception | None = None
        self._events: asyncio.Queue[Event | Exception | None] = asyncio.Queue(2)
        self._task = asyncio.create_task(self._run(use, request))

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the model's events. Raises the model's failure."""
        while (event := await self._events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def cancel(self) -> None:
        """Cancel the model's work."""
        self._task.cancel()

    async def close(self) -> None:
        """Cancel the model's work, and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, use: Use, request: InferenceRequest) -> None:
        try:
            async with use(self.alias) as served, aclosing(served.infers().infer(request)) as events:
                async for event in events:
                    self._hear(event)
                    await self._events.put(event)
        except Exception as error:  # noqa: BLE001 - the reader of the events raises it again
            if not self.spoken.done():
                self.failure = error
                self._speak()
                return
            await self._events.put(error)
        else:
            self._speak()
            await self._events.put(None)

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Started):
            self._speak()

    def _speak(self) -> None:
        if not self.spoken.done():
            self.spoken.set_result(None)


class Route:
    """A TextWorkload that lets several models of this service race for each request.

    Args:
        name: The alias of the route.
        aliases: The aliases of the route's models, in the order in which they start.
        hedge_after_s: The seconds of silence after which the next model also starts. If None, the next model starts
            only after a failure.
        use: Opens a model by its alias.
        clock: The clock for the race.
    """

    broken_because = ""

    def __init__(
        self, name: str, aliases: Sequence[str], *, hedge_after_s: float | None, use: Use, clock: Clock
    ) -> None:
        self.preparation = EstimatingPreparation(name)
        self._name = name
        self._aliases = tuple(aliases)
        self._hedge_after_s = hedge_after_s
        self._use = use
        self._clock = clock

    def load(self) -> Load:
        """Return an empty load, because the route's models report their own loads."""
        return Load()

    def stuck_for_s(self, now_s: float) -> float:  # noqa: ARG002 - the watchdog watches its models
        """Return 0, because the watchdog watches the route's models."""
        return 0.0

    def give_up(self, reason: str) -> None:
        """Do nothing, because the watchdog makes the route's models give up."""

    async def close(self) -> None:
        """Do nothing, because the service closes the route's models."""

    async def count_chat(self, prompt: ChatPrompt) -> int:
        """Return the estimated token count of a conversation."""
        return estimate_prompt(prompt)

    def runs(self, inference_id: str) -> bool:  # noqa: ARG002 - the answering model has the inference
        """Return False, because the answering model runs the inference."""
        return False

    def cancel_candidates(self, inference_id: str, indexes: Sequence[int]) -> None:
        """Raise InvalidRequest, because only the answering model can cancel its candidates."""
        raise InvalidRequest(f"inference {inference_id!r} of candidates {list(indexes)} runs in a model of the route")

    async def infer(self, request: InferenceRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of the first model with output. Closing the generator stops all work."""
        entrants: list[_Entrant] = []
        try:
            winner = await self._race(request, entrants)
            for entrant in entrants:
                if entrant is not winner:
                    entrant.cancel()
            async with aclosing(winner.events()) as events:
                async for event in events:
                    yield event
        finally:
            for entrant in entrants:
                await entrant.close()

    async def _race(self, request: InferenceRequest, entrants: list[_Entrant]) -> _Entrant:
        """Return the first model with output. Appends every started model to `entrants`."""
        race = Race(len(self._aliases), self._hedge_after_s).begin(self._clock.monotonic_s())
        while not race.is_lost:
            starting = self._aliases[len(entrants) : race.started]
            entrants += [_Entrant(alias, self._use, request) for alias in starting]
            speaking = await self._wait(race, entrants)
            winner = race.winner(position for position in speaking if entrants[position].failure is None)
            if winner is not None:
                return entrants[winner]
            now_s = self._clock.monotonic_s()
            for position in speaking:
                failed = entrants[position]
                race = race.after_failure(position, now_s, may_others_succeed=_may_others_succeed(failed.failure))
                log.warning(
                    "a model of a route failed", route=self._name, model=failed.alias, reason=str(failed.failure)
                )
            race = race.at(now_s)
        raise _reason_of([entrant.failure for entrant in entrants if entrant.failure is not None])

    async def _wait(self, race: Race, entrants: Sequence[_Entrant]) -> list[int]:
        """Return the positions of the running models that have output or have failed.

        Waits at most until the next model must start.
        """
        running = sorted(race.running)
        wait_s = None
        if not math.isinf(race.next_at_s):
            wait_s = max(0.0, race.next_at_s - self._clock.monotonic_s())
        futures = [entrants[position].spoken for position in running]
        await asyncio.wait(futures, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return [position for position in running if entrants[position].spoken.done()]


def _may_others_succeed(failure: Exception | None) -> bool:
    """Return whether a failure concerns only one model, not the request or its deadline."""
    return isinstance(failure, Unavailable | Overloaded | Internal | PreconditionFailed)


def _reason_of(failures: Sequence[Exception]) -> Exception:
    """Return the error of a lost race.

    This is the first failure that the request caused. If there is none, it is the last failure, with the other failures
    as causes.
    """
    for failure in failures:
        if not _may_others_succeed(failure):
            return failure
    *others, last = failures
    if not isinstance(last, PaganticError):
        return last
    reason = last.failure
    for other in others:
        if isinstance(other, PaganticError):
            reason = reason.because_of(other.failure)
    return type(last)(failure=reason, retry_after_s=last.retry_after_s)
