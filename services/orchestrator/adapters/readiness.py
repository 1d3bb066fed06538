"""Whether the service can answer requests: the journal takes writes, and the services that every request needs serve.

Context, rerank and tools are left out: most requests need none of them, and a chat goes on without.
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
        ready = grpc.ChannelConnectivity.READY  # the channels check health, so this one serves
        missing = [
            name for name, channel in self._needed.items() if channel.get_state(try_to_connect=True) is not ready
        ]
        if not missing:
            return ""
        return f"no connection to {' and '.join(missing)}"
