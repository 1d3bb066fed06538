"""Reads, changes and deletes executions and conversations in the journal, and reads timelines and usage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pagantic_common.domain.calls.principal import MAX_SUBJECT
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id, require_printable
from pagantic_common.domain.images import check_count
from pagantic_common.domain.messages import Message, check_message, check_stored_message, count_images
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.orchestrator.app.running.recorded import read_recorded
from services.orchestrator.app.storage import StorageQuota
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.request_check import MAX_MODEL_CHARS, check_metadata
from services.orchestrator.core.replaying.steps import Record
from services.orchestrator.core.text_size import encoded_bound
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import (
    MAX_STATE_VALUES,
    ExecutionRecord,
    Journal,
    SessionRecord,
    UsageKey,
    UsageTotal,
)
from services.orchestrator.ports.page import MAX_PAGE, Page, page_limit

MAX_AT_ONCE = 1000  # maximum number of events or messages
MAX_CHANGED = 100  # maximum number of messages appended or replaced at once
PAGE_BYTES = 2 * 1024 * 1024  # Clients accept twice this size. A larger event, message or step gets a separate page.


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """Events in sequence order, and the sequence number after which the next page starts, or 0 on the last page."""

    events: list[Event]
    next_after: int


class History:
    """The stored executions and conversations, in pages of `page_bytes`.

    Every method raises InvalidRequest if an id, page or count is invalid. Methods that add content raise Overloaded
    (QUOTA_STORAGE) if the tenant or the session has reached its storage limit.
    """

    def __init__(self, journal: Journal, storage: StorageQuota, page_bytes: int = PAGE_BYTES) -> None:
        self._journal = journal
        self._storage = storage
        self.page_bytes = page_bytes

    async def execution(self, key: ExecutionKey) -> ExecutionRecord:
        """Return an execution. Raises NotFound if it does not exist."""
        return await self._journal.get(_checked(key))

    async def executions(
        self,
        *,
        tenant: str,
        page_size: int,
        page_token: str,
        session_id: str,
        state: State | None,
        metadata: Mapping[str, str] = MappingProxyType({}),
        mode: Mode | None = None,
    ) -> Page[ExecutionRecord]:
        """Return a tenant's executions, newest first, without responses.

        If `metadata` is given, only executions with this metadata are returned.
        """
        check_metadata(metadata)
        return await self._journal.list_executions(
            tenant=tenant,
            limit=page_limit(page_size),
            after=page_token,
            session_id=_optional_id("session_id", session_id),
            state=state,
            metadata=metadata,
            mode=mode,
            max_bytes=self.page_bytes,
        )

    async def update_metadata(
        self, key: ExecutionKey, values: Mapping[str, str], removed: Sequence[str]
    ) -> ExecutionRecord:
        """Set and remove metadata of an execution.

        Raises NotFound if the execution does not exist, and PreconditionFailed if it keeps no metadata.
        """
        check_metadata(values)
        for name in removed:
            require_id("removed_keys", name)
        if values:
            await self._storage.check(_checked(key).tenant, encoded_bound(values))
        return await self._journal.update_metadata(_checked(key), values, removed)

    async def delete_execution(self, key: ExecutionKey) -> None:
        """Delete an execution. Raises NotFound if it does not exist, and PreconditionFailed while it runs."""
        await self._journal.delete_execution(_checked(key))
        self._storage.forget(key.tenant)

    async def timeline(self, key: ExecutionKey, after_sequence: int, max_events: int) -> TimelinePage:
        """Return the stored events of an execution after a sequence number. Raises NotFound if it does not exist."""
        events, has_more = await self._journal.timeline_page(
            _checked(key),
            _at_least_0("after_sequence", after_sequence),
            _count("max_events", max_events),
            self.page_bytes,
        )
        if not has_more:
            return TimelinePage(events, 0)
        return TimelinePage(events, events[-1].sequence)

    async def steps(self, key: ExecutionKey) -> Record:
        """Return the step results of an execution.

        Raises NotFound if it does not exist, and PreconditionFailed if its results are not kept.
        """
        return await read_recorded(self._journal, _checked(key))

    async def session(self, key: SessionKey, max_messages: int, before_position: int) -> SessionRecord:
        """Return a conversation with its newest messages before a position, where 0 means the end.

        Raises NotFound if the conversation does not exist.
        """
        return await self._journal.get_session(
            _checked_session(key),
            _count("max_messages", max_messages),
            before=_at_least_0("before_position", before_position),
            max_bytes=self.page_bytes,
        )

    async def sessions(self, tenant: str, page_size: int, page_token: str, state_key: str = "") -> Page[SessionRecord]:
        """Return a tenant's conversations without messages, most recently used first, with the value of `state_key`."""
        if state_key:
            require_id("state_key", state_key)
        limit = page_limit(page_size)
        return await self._journal.list_sessions(tenant=tenant, limit=limit, after=page_token, state_key=state_key)

    async def update_session(
        self,
        key: SessionKey,
        values: Mapping[str, str],
        removed: Sequence[str],
        appended: Sequence[Message] = (),
        replaced: Mapping[int, Message] = MappingProxyType({}),
    ) -> SessionRecord:
        """Set and remove JSON values of a session, and append and replace messages. Creates the session if needed.

        The keys of `replaced` are positions in the conversation before messages are appended. Raises Aborted if
        messages are appended or replaced while a turn of the session runs.
        """
        _checked_session(key)
        for name, text in values.items():
            _check_value(name, text)
        for name in removed:
            require_id("removed_keys", name)
        if len(values) + len(removed) > MAX_STATE_VALUES:
            raise InvalidRequest(f"more than {MAX_STATE_VALUES} values are changed at once")
        _check_changed("appended_messages", dict(enumerate(appended)), check_message)
        _check_changed("replaced_messages", replaced, check_stored_message)
        added = (*appended, *(message for message in replaced.values() if not message.removed))
        if added or values:
            await self._storage.check_session(key, encoded_bound(added) + encoded_bound(values))
        if replaced:
            await self._journal.replace_messages(key, replaced)
        updated = await self._journal.update_state(key, values, removed)
        if appended:
            updated = await self._journal.append_messages(key, appended)
        return updated

    async def delete_session(self, key: SessionKey) -> None:
        """Delete a conversation and its executions that are not running. Raises NotFound if neither exists."""
        await self._journal.delete_session(_checked_session(key))
        self._storage.forget(key.tenant)

    async def usage(
        self,
        *,
        tenant: str,
        session_id: str,
        model: str,
        subject: str,
        group_by: Collection[UsageKey],
        page_size: int,
        page_token: str,
    ) -> Page[UsageTotal]:
        """Return the usage and cost of a tenant's executions, filtered by session, model or subject if given.

        The totals are summed by the keys of `group_by`, or by session, model and subject if it is empty.
        """
        require_printable("model", model, MAX_MODEL_CHARS)
        require_printable("subject", subject, MAX_SUBJECT)
        return await self._journal.usage_totals(
            tenant=tenant,
            session_id=_optional_id("session_id", session_id) or None,
            model=model or None,
            subject=subject or None,
            group_by=group_by,
            limit=page_limit(page_size, MAX_PAGE),
            after=page_token,
        )


def _checked(key: ExecutionKey) -> ExecutionKey:
    require_id("request_id", key.request_id)
    return key


def _checked_session(key: SessionKey) -> SessionKey:
    require_id("session_id", key.session_id)
    return key


def _count(field: str, wanted: int) -> int:
    return min(_at_least_0(field, wanted) or MAX_AT_ONCE, MAX_AT_ONCE)


def _at_least_0(field: str, value: int) -> int:
    if value < 0:
        raise InvalidRequest(f"{field} is {value}: it must not be negative")
    return value


def _optional_id(field: str, value: str) -> str:
    return value and require_id(field, value)


def _check_changed(field: str, messages: Mapping[int, Message], check: Callable[[Message, int, str], None]) -> None:
    """Raise InvalidRequest if there are too many messages, or if a message would make later turns fail."""
    if len(messages) > MAX_CHANGED:
        raise InvalidRequest(f"{field} has {len(messages)} entries, at most {MAX_CHANGED} are taken")
    for position, message in messages.items():
        check(message, position, field)
    check_count(count_images(tuple(messages.values())))


def _check_value(key: str, text: str) -> None:
    require_id("state_json key", key)
    try:
        parse_json(text)
    except JsonTextError as error:
        raise InvalidRequest(f"state_json[{key!r}] is not JSON: {error}") from None
