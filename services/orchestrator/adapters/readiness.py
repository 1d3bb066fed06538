"""Readiness of the service: the journal accepts writes, and the services that every request needs are serving.

Context, rerank and tools do not count: most requests do not need them, and a chat works without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc


class Readiness:
    """Reads the state of the journal's heartbeats and of the connections, without a call of its own."""

    def __init__(self, needed: Mapping[str, grpc.aio.Channel], journal_trouble: Callable[[], str]) -> None:
        self._needed = needed
        self._journal_trouble = journal_trouble

    async def why_not(self) -> str:
        """Return why the service is not ready; empty when it is."""
        if trouble := self._journal_trouble():
            return trouble
        ready = grpc.ChannelConnectivity.READY  # the channels check health, so a ready channel means a serving service
        missing = [
            name for name, channel in self._needed.items() if channel.get_state(try_to_connect=True) is not ready
        ]
        if not missing:
            return ""
        return f"no connection to {' and '.join(missing)}"
