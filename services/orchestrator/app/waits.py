"""Begins and ends the waits of executions: for approvals of tool calls, signals, times and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from services.orchestrator.core.execution.wait import (
    MAX_REASON_CHARS,
    MAX_SIGNAL_BYTES,
    SIGNAL_NAME,
    Decision,
    Resolution,
    Signal,
    Wait,
    WaitKind,
    digest_of,
    violation_of,
)
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.ports.page import Page, page_limit
from services.orchestrator.ports.waits import WaitStore

POLL_S = 2.0  # poll interval for ends that another orchestrator stores without a notification
MAX_ARGUMENTS_BYTES = 256 * 1024
PARKED_WAIT_S = 7 * 86_400.0
EVERY_KIND = frozenset(WaitKind)

# Reports a dropped signal, with the reason.
Dropped = Callable[[Signal, str], Awaitable[None]]


class Waits:
    """The waits of all orchestrators that share a journal.

    Args:
        wait_s: Maximum time, in seconds, to wait for an approval, an answer, or a signal without a timeout.
        parked_wait_s: The same for an execution that is parked meanwhile.
    """

    def __init__(
        self, store: WaitStore, clock: Clock, wait_s: float = 300.0, parked_wait_s: float = PARKED_WAIT_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._wait_s = wait_s
        self._parked_wait_s = parked_wait_s

    def expiry(self, left_s: float | None, *, may_park: bool) -> datetime:
        """Return the time at which a wait that begins now expires.

        `left_s` is the remaining time of the execution or step, or None without a limit. A wait cannot end after this
        time. The time of an execution that may be parked does not run while it is parked.
        """
        wait_s = self._wait_s if left_s is None else min(self._wait_s, left_s)
        return self._clock.now() + timedelta(seconds=self._parked_wait_s if may_park else wait_s)

    async def begin(self, key: ExecutionKey, wait: Wait) -> tuple[Wait, bool]:
        """Return a wait, and whether it is new. A wait that has already begun keeps its times and its end."""
        stored = await self._store.begin_wait(key, wait)
        return stored, stored is wait

    async def until_resolved(self, key: ExecutionKey, wait: Wait, dropped: Dropped) -> Wait:
        """Return a wait once it has ended."""
        with self._store.watching(key) as execution:
            while (ended := await self.resolved(key, wait, dropped)) is None:
                left_s = (wait.expires_at - self._clock.now()).total_seconds()
                await execution.wait(POLL_S, max(0.0, left_s))
            return ended

    async def resolved(self, key: ExecutionKey, wait: Wait, dropped: Dropped) -> Wait | None:
        """Return a wait with its end, if a decision, a kept signal or its time ends it, otherwise None.

        A kept signal whose payload breaks the schema of the wait is dropped.
        """
        stored = await self._store.get_wait(key, wait.id)
        if not stored.is_for(wait):  # A decision about another call of this id does not count.
            return wait.resolved(Resolution(Decision.EXPIRED, self._clock.now()))
        if stored.resolution is None and wait.takes_signals:
            stored = await self._take_signal(key, stored, dropped)
        if stored.resolution is not None:
            return stored
        if self._clock.now() < wait.expires_at:
            return None
        return await self._store.resolve_wait(key, wait.id, Resolution(Decision.EXPIRED, wait.expires_at))

    async def _take_signal(self, key: ExecutionKey, wait: Wait, dropped: Dropped) -> Wait:
        while (signal := await self._store.next_signal(key, wait.name)) is not None:
            if violation := await asyncio.to_thread(violation_of, wait.schema_json, signal.payload_json):
                if not await self._store.drop_signal(key, wait.id, signal.id):
                    return wait
                await dropped(signal, violation)
                continue
            resolution = Resolution(
                Decision.SIGNALLED, self._clock.now(), signal.subject, signal.payload_json, signal_id=signal.id
            )
            return await self._store.take_signal(key, wait.id, resolution)
        return wait

    async def decide(
        self,
        key: ExecutionKey,
        tool_call_id: str,
        decision: Decision,
        *,
        subject: str = "",
        arguments_json: str = "",
        reason: str = "",
        check_changed: Callable[[str], Awaitable[str]],
        check_schema: Callable[[str, str], Awaitable[None]],
    ) -> Wait:
        """Decide on a call that needs an approval.

        `check_changed` returns the changed arguments after the guards' changes. Then `check_schema` checks these
        against the schema of the named tool.

        Raises NotFound if the call is not pending, PreconditionFailed if a different decision was made or the approval
        has expired, InvalidRequest if the arguments are not a JSON object, and the errors of both checks. After an
        error the call still waits.
        """
        require_id("request_id", key.request_id)
        require_id("tool_call_id", tool_call_id)
        _check_decision(decision, arguments_json, reason)
        now = self._clock.now()
        pending = await self._store.get_wait(key, tool_call_id)
        if pending.kind is not WaitKind.APPROVAL:
            raise NotFound(f"no call {tool_call_id!r} of execution {key.request_id!r} needs an approval")
        if pending.has_expired(now):
            raise PreconditionFailed(f"call {tool_call_id!r} is no longer pending: the time for a decision is over")
        if arguments_json:
            arguments_json = await check_changed(arguments_json)
        if arguments_json and pending.resolution is None:
            await check_schema(pending.name, arguments_json)
        resolution = Resolution(decision, now, subject, arguments_json, reason)
        approval = await self._store.resolve_wait(key, tool_call_id, resolution)
        if approval.resolution is None or not approval.resolution.agrees_with(resolution):
            raise PreconditionFailed(f"call {tool_call_id!r} is no longer pending: {_decision_of(approval)}")
        return approval

    async def signal(
        self,
        key: ExecutionKey,
        name: str,
        payload_json: str,
        check_content: Callable[[str], Awaitable[str]],
        *,
        signal_id: str,
        subject: str = "",
    ) -> None:
        """Send a signal to an execution. A wait of its name takes it, or it is kept until such a wait begins.

        `check_content` returns the payload as the guards leave it. A signal that was sent before is not checked again.
        Raises InvalidRequest if the signal is malformed, or breaks the schema of the wait that would take it, and the
        errors of `WaitStore.add_signal` and of the guards.
        """
        require_id("request_id", key.request_id)
        require_id("signal_id", signal_id)
        payload_json = _canonical_payload(name, payload_json)
        digest = digest_of(name, payload_json)
        if await self._store.signal_digest(key, signal_id) != digest:
            payload_json = await check_content(payload_json)
            await self._check_against_wait(key, name, payload_json)
        await self._store.add_signal(key, Signal(signal_id, name, payload_json, digest, subject))

    async def _check_against_wait(self, key: ExecutionKey, name: str, payload_json: str) -> None:
        """Raise InvalidRequest if the payload breaks the schema of the open wait that would take it."""
        wait = await self._store.first_wait(key, name)
        if wait is None:
            return
        if violation := await asyncio.to_thread(violation_of, wait.schema_json, payload_json):
            raise InvalidRequest(f"payload_json does not satisfy the schema of wait {wait.id!r}: {violation}")

    async def list_open(
        self,
        tenant: str,
        request_id: str,
        page_size: int = 0,
        page_token: str = "",
        kinds: Collection[WaitKind] = EVERY_KIND,
    ) -> Page[Wait]:
        """Return a tenant's open waits of these kinds, oldest first. A non-empty `request_id` selects one execution."""
        if request_id:
            require_id("request_id", request_id)
        limit = page_limit(page_size)
        page = await self._store.list_waits(
            tenant=tenant, limit=limit, after=page_token, request_id=request_id, kinds=kinds
        )
        now = self._clock.now()
        return replace(page, items=[wait for wait in page.items if not wait.has_expired(now)])


def _check_decision(decision: Decision, arguments_json: str, reason: str) -> None:
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidRequest(f"reason has {len(reason)} characters: it may have {MAX_REASON_CHARS}")
    if not arguments_json:
        return
    if decision is not Decision.APPROVED:
        raise InvalidRequest("arguments_json is set, but a call that is rejected has no arguments: leave it empty")
    if len(arguments_json.encode(errors="replace")) > MAX_ARGUMENTS_BYTES:
        raise InvalidRequest(f"arguments_json has more than {MAX_ARGUMENTS_BYTES} bytes")
    try:
        arguments = parse_json(arguments_json, is_rewritable=True)
    except JsonTextError as error:
        raise InvalidRequest(f"arguments_json is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidRequest("arguments_json must be a JSON object")


def _decision_of(approval: Wait) -> str:
    if approval.resolution is None:
        return "it is not pending"
    return f"it is {approval.resolution.decision.lower()}"


def _canonical_payload(name: str, payload_json: str) -> str:
    """Return the payload of a signal as JSON in which each name of an object occurs once.

    Raises InvalidRequest if the signal is malformed.
    """
    if not SIGNAL_NAME.fullmatch(name):
        raise InvalidRequest(f"name is {name[:80]!r}: it needs 1 to 128 letters, digits and . _ : / # -")
    size_bytes = len(payload_json.encode(errors="replace"))
    if size_bytes > MAX_SIGNAL_BYTES:
        raise InvalidRequest(f"payload_json has {size_bytes} bytes: it may have {MAX_SIGNAL_BYTES}")
    try:
        return dump_json(parse_json(payload_json or "null", is_rewritable=True))
    except JsonTextError as error:
        raise InvalidRequest(f"payload_json is not JSON: {error}") from None
