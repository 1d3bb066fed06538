"""The connections of a client, with a connection for each event loop, because gRPC binds a channel to its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import grpc

from pagantic.context.v1 import context_service_pb2_grpc
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc
from pagantic_common.rpc.channel import check_not_forked, is_forked

CLOSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A channel with the stubs of the services at the orchestrator's port."""

    channel: grpc.aio.Channel
    orchestrator: orchestrator_service_pb2_grpc.OrchestratorServiceAsyncStub
    context: context_service_pb2_grpc.ContextServiceAsyncStub


class Connections:
    """The connections of a client. `open_channel` opens a channel for the running event loop."""

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel]) -> None:
        self._open_channel = open_channel
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def current(self) -> Connection:
        """Return the connection of the running event loop, opening it on the first call.

        Raises PreconditionFailed in a process that was forked after its parent had used gRPC.
        """
        check_not_forked()
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            self._drop_ended(loop)
            channel = self._open_channel()
            connection = self._connections[loop] = Connection(
                channel,
                orchestrator_service_pb2_grpc.OrchestratorServiceStub(channel),
                context_service_pb2_grpc.ContextServiceStub(channel),
            )
        return connection

    def _drop_ended(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections of closed loops. A program may use a new loop for each call."""
        for other in list(self._connections):
            if other.is_closed() and (ended := self._connections.pop(other, None)) is not None:
                closing = loop.create_task(_close(ended))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the connections of all loops within a few seconds, and cancel their calls.

        A forked process does not close its parent's connections.
        """
        if is_forked():
            return
        loop = asyncio.get_running_loop()
        closings: list[asyncio.Future[None]] = []
        for other in list(self._connections):
            connection = self._connections.pop(other, None)
            if connection is None:  # Another thread closes the connection.
                continue
            closing = _close(connection)
            if other is not loop and other.is_running():
                closings.append(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, other)))
            else:
                closings.append(asyncio.ensure_future(closing))
        if closings:
            await asyncio.wait(closings, timeout=CLOSE_S)


async def _close(connection: Connection) -> None:
    # The calls of a closed loop cannot be cancelled, and their errors need no report.
    with suppress(Exception):
        await connection.channel.close()
