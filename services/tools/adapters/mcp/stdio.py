"""Exchanges messages over a program's standard streams, one per line, with limits on bytes and time.

The SDK's transport reads lines of any length.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError

from services.tools.adapters.mcp.server_process import OutputLog, running_process, wait_until_exited
from services.tools.core.servers import ProgramTransport
from services.tools.ports import ServerLost

Received = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]

# Outgoing messages are queued, so that a caller that leaves does not wait for a slow server.
_SENT_CAPACITY = 256
_SEND_TIMEOUT_S = 10.0
# Launchers print banners before the first message. A program that prints more lines does not speak the protocol.
_MAX_OTHER_LINES = 100
# This rate limits the time that the service spends on a server's output.
_MAX_LINES_PER_S = 1000


class StdioTransport:
    """Runs a server's program. `end_reason` states why the connection ended, and is empty until then."""

    def __init__(self, transport: ProgramTransport, name: str, max_message_bytes: int) -> None:
        self._transport = transport
        self._name = name
        self._max_message_bytes = max_message_bytes
        self._has_ended = asyncio.Event()
        self.end_reason = ""

    async def wait_until_ended(self) -> str:
        """Wait until the connection has ended, and return the reason."""
        await self._has_ended.wait()
        return self.end_reason

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start the program, and yield its message streams as the SDK expects them from a transport."""
        async with running_process(self._transport, self._name, self._max_message_bytes) as process:
            received_in, received = anyio.create_memory_object_stream[Received](0)
            sent, sent_out = anyio.create_memory_object_stream[SessionMessage](_SENT_CAPACITY)
            exchanging = asyncio.create_task(self._exchange(process, received_in, sent_out))
            try:
                yield received, sent
            finally:
                exchanging.cancel()
                await asyncio.gather(exchanging, return_exceptions=True)
                for stream in (received_in, received, sent, sent_out):
                    stream.close()

    async def _exchange(
        self,
        process: Process,
        received_in: MemoryObjectSendStream[Received],
        sent_out: MemoryObjectReceiveStream[SessionMessage],
    ) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(process, received_in))
                tasks.create_task(_write(process, sent_out))
        except* ServerLost as lost:
            self.end_reason = str(lost.exceptions[0])
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.end_reason = "its session ended"
        finally:
            self._has_ended.set()
            received_in.close()

    async def _read(self, process: Process, received_in: MemoryObjectSendStream[Received]) -> None:
        """Forward the messages, and log all other lines: many servers write their own log to standard output.

        Raises ServerLost if the program writes too many other lines before its first message.
        """
        other_lines = 0
        has_sent_message = False
        output_log = OutputLog(self._name, "mcp server's other output")
        pace = _Pace()
        while True:
            line = await self._read_line(process)
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                output_log.note(line)
                other_lines += bool(line.strip())
                if other_lines > _MAX_OTHER_LINES and not has_sent_message:
                    raise ServerLost("it writes other lines than messages to its standard output") from None
            else:
                has_sent_message = True
                await received_in.send(SessionMessage(message))
            await pace.keep()

    async def _read_line(self, process: Process) -> bytes:
        if process.stdout is None:
            raise ServerLost("it has no standard output")
        try:
            return await process.stdout.readuntil()
        except asyncio.IncompleteReadError:
            raise ServerLost(await _describe_end(process)) from None
        except asyncio.LimitOverrunError:
            limit = self._max_message_bytes
            raise ServerLost(f"it sent a message of more than {limit} bytes: raise MCP_MAX_MESSAGE_BYTES") from None


async def _write(process: Process, sent_out: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async for sent in sent_out:
        if process.stdin is None:
            raise ServerLost("it has no standard input")
        text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            process.stdin.write(text.encode(errors="replace") + b"\n")
            async with asyncio.timeout(_SEND_TIMEOUT_S):
                await process.stdin.drain()
        except TimeoutError:
            raise ServerLost(f"it did not read its standard input for {_SEND_TIMEOUT_S:g} s") from None
        except OSError:
            raise ServerLost(await _describe_end(process)) from None


async def _describe_end(process: Process) -> str:
    """Describe the end of a process with closed streams. Its exit status may arrive a moment later."""
    try:
        async with asyncio.timeout(1):
            await wait_until_exited(process)
    except TimeoutError:
        return "it closed its standard output"
    status = process.returncode or 0
    if status < 0:
        return f"its program was ended by signal {-status}"
    return f"its program ended with status {status}: its errors are in the log at level debug"


class _Pace:
    """Slows down a reader after too many lines, so that the full pipe blocks the program."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._window_started_s = self._loop.time()
        self._count = 0

    async def keep(self) -> None:
        """Count a line. Waits for the next second if the limit of the current second is used up."""
        self._count += 1
        if self._count < _MAX_LINES_PER_S:
            return
        left_s = self._window_started_s + 1 - self._loop.time()
        await asyncio.sleep(max(left_s, 0))
        self._window_started_s = self._loop.time()
        self._count = 0
