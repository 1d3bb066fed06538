"""Manages the tools that programs offer and run: the calls of these tools, and the health of the programs.

Theory of operation. An offer lasts as long as the stream of its program. A call waits in a table until the program
answers it. The queue of the stream holds the calls that the program has not read. A watchdog ends the offer of a
program that has been silent for too long, so its tools disappear even if the stream stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagantic_common.domain.calls.shares import Shares
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Conflict, NotFound, Overloaded, Unavailable
from pagantic_common.domain.messages import ToolCall, ToolDefinition, ToolFailed, ToolProgress
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import current_effect_id, current_principal
from services.tools.app.registry import ToolRegistry
from services.tools.core.remote_names import prefixed_name
from services.tools.core.servers import check_server_name
from services.tools.ports import Report, Tool, ToolUnavailable

MAX_REASON_CHARS = 200
UNREAD_PER_CALL = 4  # unread messages per call that a program may run; further messages are dropped

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OfferLimits:
    """Limits of all offers and of each offer. An offer ends after three health checks without an answer."""

    max_offers: int = 64
    max_tools: int = 128
    max_calls: int = 64
    health_check_s: float = 10.0

    @property
    def max_silence_s(self) -> float:
        """The longest permitted time without an answer."""
        return 3 * self.health_check_s


@dataclass(frozen=True, slots=True)
class Offered:
    """Confirms the offer. `left_out` holds the reason for each rejected tool by name."""

    offer_id: str
    tools: Sequence[Tool]
    left_out: Mapping[str, str]
    health_check_s: float
    origin: str


@dataclass(frozen=True, slots=True)
class CallAsked:
    """Asks the program to run a call with an effect id."""

    call: ToolCall
    effect_id: str


@dataclass(frozen=True, slots=True)
class CallWithdrawn:
    """Informs the program that the caller no longer waits for the call."""

    call_id: str


@dataclass(frozen=True, slots=True)
class HealthAsked:
    """Asks the program for its health."""


ProviderEvent = Offered | CallAsked | CallWithdrawn | HealthAsked


@dataclass(slots=True)
class _RunningCall:
    result: asyncio.Future[str]
    report: Report


class _Offer:
    """The tools of a program, and the calls that it runs."""

    def __init__(self, name: str, limits: OfferLimits, clock: Clock) -> None:
        self.id = uuid.uuid4().hex
        self.source = f"provider {name}"
        self.unavailable_reason = ""
        self.heard_at_s = clock.monotonic_s()
        self._limits = limits
        self._events: asyncio.Queue[ProviderEvent | None] = asyncio.Queue()  # `_send` limits its size
        self._calls: dict[str, _RunningCall] = {}
        self._shares = Shares(limits.max_calls)  # by tenant
        self._count = 0

    async def next_event(self) -> ProviderEvent | None:
        """Return the next message to the program, or None once the offer has ended."""
        return await self._events.get()

    def ask_health(self) -> None:
        """Ask the program for its health. The message is dropped if too many messages are unread."""
        self._send(HealthAsked())

    def _send(self, event: ProviderEvent) -> None:
        if self._events.qsize() < UNREAD_PER_CALL * self._limits.max_calls:
            self._events.put_nowait(event)

    async def call(self, name: str, arguments: Mapping[str, Any], report: Report) -> str:
        """Ask the program to run a call.

        Raises ToolFailed with the program's message, or ToolUnavailable if the program has left.
        """
        if self.unavailable_reason:
            raise ToolUnavailable(self.unavailable_reason)
        tenant = current_principal().sharing_tenant
        if not self._shares.begin(tenant):
            reason = f"its program is at its limit of {self._limits.max_calls} concurrent calls"
            if self._shares.free:
                reason = f"the tenant has its share of the {self._limits.max_calls} concurrent calls of its program"
            raise ToolFailed(reason, is_final=False)
        self._count += 1
        call_id = f"call-{self._count}"
        running = _RunningCall(asyncio.get_running_loop().create_future(), report)
        self._calls[call_id] = running
        self._send(CallAsked(ToolCall(call_id, name, dump_json(dict(arguments))), current_effect_id()))
        try:
            return await running.result
        except asyncio.CancelledError:
            self._send(CallWithdrawn(call_id))
            raise
        finally:
            del self._calls[call_id]
            self._shares.end(tenant)

    def answer(self, call_id: str, answer: ToolProgress | str | ToolFailed) -> None:
        """Accept an answer, or drop it if no caller waits for it."""
        running = self._calls.get(call_id)
        if running is None or running.result.done():
            return
        match answer:
            case ToolProgress():
                running.report(answer)
            case ToolFailed():
                running.result.set_exception(answer)
            case _:
                running.result.set_result(answer)

    def end(self, reason: str) -> None:
        """Fail the running calls and end the stream."""
        self.unavailable_reason = reason
        for running in self._calls.values():
            if not running.result.done():
                running.result.set_exception(ToolUnavailable(reason, may_have_run=True))
        self._events.put_nowait(None)


class ProvidedTool:
    """A tool that an offering program runs."""

    is_remote = True
    places = None  # the offer itself refuses calls beyond its limit

    def __init__(self, definition: ToolDefinition, own_name: str, offer: _Offer) -> None:
        self.definition = definition
        self._own_name = own_name
        self._offer = offer

    @property
    def unavailable_reason(self) -> str:
        """The reason why the program cannot be called, or an empty string if it can."""
        return self._offer.unavailable_reason

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the program's result. Raises ToolFailed and ToolUnavailable. Cancelling withdraws the call."""
        return await self._offer.call(self._own_name, arguments, report)


class Providers:
    """Holds the offers of all programs, keyed by id."""

    def __init__(
        self,
        registry: ToolRegistry,
        clock: Clock,
        limits: OfferLimits | None = None,
        *,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._limits = limits or OfferLimits()
        self._sleep = sleep
        self._offers: dict[str, _Offer] = {}

    async def offer(self, name: str, tools: Sequence[ToolDefinition]) -> AsyncGenerator[ProviderEvent, None]:
        """Offer tools until the generator is closed, and yield the messages to their program.

        Raises InvalidRequest if the name is invalid, Conflict if it is taken, Overloaded if there are too many offers,
        and Unavailable after the program has been silent for too long.
        """
        offer = self._open(name)
        try:
            offered = self._register(offer, name, tools)
            async with self._watched(offer):
                yield offered
                while (event := await offer.next_event()) is not None:
                    yield event
            raise Unavailable(f"the offer has ended: {offer.unavailable_reason}")
        finally:
            self._close(offer, "its program has left")

    def answer(self, offer_id: str, call_id: str, answer: ToolProgress | str | ToolFailed) -> None:
        """Accept the answer to a call. Raises NotFound if the offer has ended."""
        self._heard(offer_id).answer(call_id, answer)

    def answer_health(self, offer_id: str, unavailable_reason: str) -> None:
        """Record the health of a program. Raises NotFound if the offer has ended."""
        self._heard(offer_id).unavailable_reason = unavailable_reason[:MAX_REASON_CHARS]

    def _heard(self, offer_id: str) -> _Offer:
        offer = self._offers.get(offer_id)
        if offer is None:
            raise NotFound(f"no offer has offer_id {offer_id[:64]!r}: it has ended, offer the tools again")
        offer.heard_at_s = self._clock.monotonic_s()
        return offer

    def _open(self, name: str) -> _Offer:
        check_server_name(name)
        offer = _Offer(name, self._limits, self._clock)
        if any(other.source == offer.source for other in self._offers.values()):
            raise Conflict(f"tools are offered under the name {name!r} already: choose another, or end that stream")
        if len(self._offers) >= self._limits.max_offers:
            raise Overloaded(f"the limit of {self._limits.max_offers} tool providers is reached", retry_after_s=10.0)
        self._offers[offer.id] = offer
        return offer

    def _register(self, offer: _Offer, name: str, tools: Sequence[ToolDefinition]) -> Offered:
        provided = [
            ProvidedTool(replace(tool, name=prefixed_name(name, tool.name)), tool.name, offer)
            for tool in tools[: self._limits.max_tools]
        ]
        left_out = {
            prefixed_name(name, tool.name): f"a program offers at most {self._limits.max_tools} tools"
            for tool in tools[self._limits.max_tools :]
        }
        left_out |= self._registry.replace(offer.source, provided)
        log.info("tools offered", provider=name, tools=len(provided), left_out=len(left_out))
        offered_tools = self._registry.list_of(offer.source)
        return Offered(offer.id, offered_tools, left_out, self._limits.health_check_s, origin=offer.source)

    def _close(self, offer: _Offer, reason: str) -> None:
        if self._offers.pop(offer.id, None) is None:
            return
        self._registry.replace(offer.source, ())
        offer.end(reason)
        log.info("offer of tools ended", provider=offer.source, reason=reason)

    @contextlib.asynccontextmanager
    async def _watched(self, offer: _Offer) -> AsyncGenerator[None, None]:
        watching = asyncio.create_task(self._watch(offer))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _watch(self, offer: _Offer) -> None:
        while self._clock.monotonic_s() - offer.heard_at_s < self._limits.max_silence_s:
            offer.ask_health()
            await self._sleep(self._limits.health_check_s)
        self._close(offer, f"its program answered no health check for {self._limits.max_silence_s:g} s")
