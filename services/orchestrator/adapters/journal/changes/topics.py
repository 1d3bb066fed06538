"""Topic names and the messages of the orchestrators about topics. Has no effects."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import NamedTuple

from services.orchestrator.core.model.keys import ExecutionKey, SessionKey

EVERYTHING = "*"
WANTED, CHANGED = "wanted", "changed"
TOPICS_PER_MESSAGE = 400  # PostgreSQL takes messages of less than 8000 bytes
MAX_TOPICS = 10_000


def topic_of(key: ExecutionKey | SessionKey) -> str:
    """Return the topic of an execution or a conversation: a short hash that reveals nothing."""
    return hashlib.sha256("\0".join((type(key).__name__, *key)).encode(errors="replace")).hexdigest()[:16]


class Message(NamedTuple):
    """A message to all orchestrators: its sender waits for these topics, or has changed them."""

    sender: str
    kind: str
    topics: tuple[str, ...]


def write_messages(sender: str, kind: str, topics: Collection[str]) -> Iterator[str]:
    """Yield the texts of the messages about topics; empty without topics."""
    names = sorted(topics)
    for start in range(0, len(names), TOPICS_PER_MESSAGE):
        yield " ".join((sender, kind, *names[start : start + TOPICS_PER_MESSAGE]))


def read_message(text: str) -> Message | None:
    """Parse a message; None for a text of another version or of another program."""
    sender, _, rest = text.partition(" ")
    kind, *topics = rest.split(" ")
    if kind not in (WANTED, CHANGED):
        return None
    return Message(sender, kind, tuple(topics))


class Interests:
    """The topics that other processes wait for, and the topics that changed here recently.

    Invariant: a change reaches every process that asked for its topic before the change, or at most `recent_s` after
    it, so a process may ask and read at the same time. Each set keeps the newest MAX_TOPICS topics.
    """

    def __init__(self, kept_s: float, recent_s: float) -> None:
        self._kept_s = kept_s
        self._recent_s = recent_s
        self._wanted: dict[str, float] = {}  # by the time of their end, the earliest first
        self._recent: dict[str, float] = {}

    def want(self, topics: Collection[str], now_s: float) -> list[str]:
        """Record that another process waits for topics; return the topics that changed here recently."""
        _put(self._wanted, topics, now_s, now_s + self._kept_s)
        return [topic for topic in topics if self._recent.get(topic, now_s) > now_s]

    def change(self, topics: Collection[str], now_s: float) -> list[str]:
        """Record that topics changed here; return the topics that another process waits for."""
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
