"""Whether a request that comes now would be answered: the journal takes writes, and what every request needs serves.

Context, rerank and tools are not waited for: most requests need none of them, and a chat goes on without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc


class Readiness:
    """Looks at what is known anyway: the beats of the journal, and the connections to the needed services."""

    def __init__(self, needed: Mapping[str, grpc.aio.Channel], journal_trouble: Callable[[], str]) -> None:
        self._needed = needed
        self._journal_trouble = journal_trouble

    async def why_not(self) -> str:
        """Return what is missing, empty when nothing is."""
        if trouble := self._journal_trouble():
            return trouble
        ready = grpc.ChannelConnectivity.READY  # the channels check health, so this one serves
        missing = [
            name for name, channel in self._needed.items() if channel.get_state(try_to_connect=True) is not ready
        ]
        return f"no connection to {' and '.join(missing)}" if missing else ""
