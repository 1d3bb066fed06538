"""Wakes the waiters of this process after a commit, and collects the messages for other processes."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from services.orchestrator.adapters.journal.changes.topics import (
    CHANGED,
    EVERYTHING,
    MAX_TOPICS,
    WANTED,
    Interests,
    read_message,
    topic_of,
    write_messages,
)
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.ports.changes import Changes, Watch

FALLBACK_S = 5.0  # poll interval besides notifications: bounds the delay after a lost notification
RENEW_S = 5.0  # between the announcements of the topics that a process waits for
SILENCE_S = 3 * RENEW_S  # silence after which a process polls, and after which others forget its topics
RECENT_S = RENEW_S + 1.0  # A new process learns within RENEW_S which topics other processes wait for.


class Hub(Changes):
    """The watches of a process; each watch polls while notifications of other processes do not arrive.

    Attributes:
        on_due: Called when messages for other processes are due; None if messages are not carried.
    """

    def __init__(self) -> None:
        self._sender = secrets.token_hex(8)
        self._watches: dict[str, set[_Watch]] = {}
        self._interests = Interests(kept_s=SILENCE_S, recent_s=RECENT_S)
        self._heard_s = -math.inf  # when its own message came back
        self._due: dict[str, set[str]] = {WANTED: set(), CHANGED: set()}
        self.on_due: Callable[[], None] | None = None

    @property
    def has_notifications(self) -> bool:
        """Whether notifications arrive: this process hears its own."""
        return time.monotonic() - self._heard_s < SILENCE_S

    @contextmanager
    def watching(self, key: ExecutionKey | SessionKey) -> Iterator[Watch]:
        """Watch an execution or a conversation."""
        topic = topic_of(key)
        watch = _Watch(self)
        watches = self._watches.setdefault(topic, set())
        watches.add(watch)
        self._tell(WANTED, [topic])
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                self._watches.pop(topic, None)

    def note(self, topics: Collection[str]) -> None:
        """Wake local waiters of committed topics and notify other processes that wait for them."""
        self._wake(topics)
        if self.on_due is not None:
            self._tell(CHANGED, self._interests.change(topics, time.monotonic()))

    def hear(self, text: str) -> None:
        """Handle a message, which may be this process's own."""
        message = read_message(text)
        if message is None:
            return
        if message.sender == self._sender:
            self._heard_s = time.monotonic()
        elif message.kind == CHANGED:
            self._wake(message.topics)
        else:
            self._tell(CHANGED, self._interests.want(message.topics, time.monotonic()))

    def renew(self) -> None:
        """Announce again the topics that this process waits for."""
        self._tell(WANTED, self._watches)

    def lose(self) -> None:
        """Note that messages may have been lost: everybody here looks again."""
        self._heard_s = -math.inf
        self._wake([EVERYTHING])

    def take_due(self) -> list[str]:
        """Return the messages that are to be sent now."""
        due = [text for kind, topics in self._due.items() for text in write_messages(self._sender, kind, topics)]
        for topics in self._due.values():
            topics.clear()
        return due

    def hello(self) -> str:
        """Return a message with which this process checks its own connection."""
        return f"{self._sender} {WANTED}"

    def _tell(self, kind: str, topics: Collection[str]) -> None:
        if not topics or self.on_due is None:
            return
        due = self._due[kind]
        due.update(topics)
        if len(due) > MAX_TOPICS:  # the sender is stalled
            due.clear()
            due.add(EVERYTHING)
        self.on_due()

    def _wake(self, topics: Collection[str]) -> None:
        found = topics
        if EVERYTHING in topics:
            found = list(self._watches)
        for topic in found:
            for watch in self._watches.get(topic, ()):
                watch.changed.set()


class _Watch(Watch):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.changed = asyncio.Event()

    async def wait(self, poll_s: float, limit_s: float = math.inf) -> None:
        if self._hub.has_notifications:
            poll_s = max(poll_s, FALLBACK_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(poll_s, limit_s)):
                await self.changed.wait()
        self.changed.clear()
