"""Wakes this process's waiters after a commit, and collects the messages for other processes.

A message contains topics: hashes of the executions and conversations that changed or that the sender waits for.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.ports.changes import Changes, Watch

EVERYTHING = "*"
WANTED, CHANGED = "wanted", "changed"
TOPICS_PER_MESSAGE = 400  # PostgreSQL accepts messages of less than 8000 bytes.
MAX_TOPICS = 10_000
FALLBACK_S = 5.0  # poll interval in addition to messages; bounds the delay after a lost message
RENEW_S = 5.0  # time between announcements of the topics that a process waits for
SILENCE_S = 3 * RENEW_S  # silence after which a process polls, and after which other processes drop its topics
RECENT_S = RENEW_S + 1.0  # A new process learns within RENEW_S which topics other processes wait for.


def topic_of(key: ExecutionKey | SessionKey) -> str:
    """Return the topic of an execution or a conversation: a short hash that does not reveal the key."""
    return hashlib.sha256("\0".join((type(key).__name__, *key)).encode(errors="replace")).hexdigest()[:16]


class TopicMessage(NamedTuple):
    """A message to all orchestrators: the sender waits for these topics, or has changed them."""

    sender: str
    kind: str
    topics: tuple[str, ...]


def write_messages(sender: str, kind: str, topics: Collection[str]) -> Iterator[str]:
    """Yield the texts of the messages about topics, or nothing if there are no topics."""
    names = sorted(topics)
    for start in range(0, len(names), TOPICS_PER_MESSAGE):
        yield " ".join((sender, kind, *names[start : start + TOPICS_PER_MESSAGE]))


def read_message(text: str) -> TopicMessage | None:
    """Parse a message; None if another version or another program sent it."""
    sender, _, rest = text.partition(" ")
    kind, *topics = rest.split(" ")
    if kind not in (WANTED, CHANGED):
        return None
    return TopicMessage(sender, kind, tuple(topics))


class Interests:
    """The topics that other processes wait for, and the topics that changed here recently.

    Invariant: a change reaches every process that announced its interest before the change, or within `recent_s` after
    it, so a process may announce and read at the same time. Each set keeps the newest MAX_TOPICS topics.
    """

    def __init__(self, kept_s: float, recent_s: float) -> None:
        self._kept_s = kept_s
        self._recent_s = recent_s
        self._wanted: dict[str, float] = {}  # expiry times by topic, earliest first
        self._recent: dict[str, float] = {}

    def want(self, topics: Collection[str], now_s: float) -> list[str]:
        """Record that another process waits for topics, and return the topics among them that changed here recently."""
        _put(self._wanted, topics, now_s, now_s + self._kept_s)
        return [topic for topic in topics if self._recent.get(topic, now_s) > now_s]

    def change(self, topics: Collection[str], now_s: float) -> list[str]:
        """Record that topics changed here, and return the topics among them that another process waits for."""
        _put(self._recent, topics, now_s, now_s + self._recent_s)
        if EVERYTHING in topics or self._wanted.get(EVERYTHING, now_s) > now_s:
            return list(topics)
        return [topic for topic in topics if self._wanted.get(topic, now_s) > now_s]


def _put(ends: dict[str, float], topics: Collection[str], now_s: float, end_s: float) -> None:
    for topic in topics:
        ends.pop(topic, None)
        ends[topic] = end_s
    while ends and (len(ends) > MAX_TOPICS or next(iter(ends.values())) <= now_s):
        del ends[next(iter(ends))]


class Hub(Changes):
    """The watches of a process. A watch polls while messages from other processes do not arrive.

    Attributes:
        on_due: Called when messages for other processes are due; None if messages are not carried.
    """

    def __init__(self) -> None:
        self._sender = secrets.token_hex(8)
        self._watches: dict[str, set[_Watch]] = {}
        self._interests = Interests(kept_s=SILENCE_S, recent_s=RECENT_S)
        self._heard_s = -math.inf  # time at which this process last received its own message
        self._due: dict[str, set[str]] = {WANTED: set(), CHANGED: set()}
        self.on_due: Callable[[], None] | None = None

    @property
    def has_notifications(self) -> bool:
        """Whether messages arrive. The hub infers this from receiving its own messages."""
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
        """Wake the local waiters for committed topics, and announce the topics that other processes wait for."""
        self._wake(topics)
        if self.on_due is not None:
            self._tell(CHANGED, self._interests.change(topics, time.monotonic()))

    def hear(self, text: str) -> None:
        """Handle a message from any process, including this process."""
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
        """Record that messages may have been lost, and make all local waiters check again."""
        self._heard_s = -math.inf
        self._wake([EVERYTHING])

    def take_due(self) -> list[str]:
        """Return the messages that are due, and clear them."""
        due = [text for kind, topics in self._due.items() for text in write_messages(self._sender, kind, topics)]
        for topics in self._due.values():
            topics.clear()
        return due

    def hello(self) -> str:
        """Return a message with which this process tests its own connection."""
        return f"{self._sender} {WANTED}"

    def _tell(self, kind: str, topics: Collection[str]) -> None:
        if not topics or self.on_due is None:
            return
        due = self._due[kind]
        due.update(topics)
        if len(due) > MAX_TOPICS:  # The sender is stalled.
            due.clear()
            due.add(EVERYTHING)
        self.on_due()

    def _wake(self, topics: Collection[str]) -> None:
        affected_topics = topics
        if EVERYTHING in topics:
            affected_topics = list(self._watches)
        for topic in affected_topics:
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
