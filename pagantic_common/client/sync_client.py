"""The client for ordinary programs: the asyncio client on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Generator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client.async_client import (
    DEFAULT_ADDRESS,
    DEFAULT_TIMEOUT_S,
    MAX_MESSAGE_BYTES,
    AsyncClient,
    ModelT,
)
from pagantic_common.client.requests import Hints, Messages
from pagantic_common.domain.messages import ToolChoice

ResultT = TypeVar("ResultT")


class Client:
    """Talks to one orchestrator; may be shared by threads. Use it as a context manager, or close it.

    Methods and errors are those of AsyncClient.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.address = address
        self._client = AsyncClient(address, timeout_s=timeout_s, max_message_bytes=max_message_bytes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pagantic-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a second time does nothing."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def chat(
        self,
        text_or_messages: Messages,
        *,
        session_id: str = "",
        tools: Sequence[str] | None = None,
        tool_choice: str | ToolChoice | None = None,
        system: str = "",
        **hints: Unpack[Hints],
    ) -> execution_pb2.SystemResponse:
        """Take a chat turn; raises PaganticError when it failed. Arguments are those of `chat_request`."""
        return self._run(
            self._client.chat(
                text_or_messages, session_id=session_id, tools=tools, tool_choice=tool_choice, system=system, **hints
            )
        )

    def structured(
        self, text_or_messages: Messages, output_type: type[ModelT], *, system: str = "", **hints: Unpack[Hints]
    ) -> ModelT:
        """Return an instance of `output_type` made from the text; raises PaganticError when that failed."""
        return self._run(self._client.structured(text_or_messages, output_type, system=system, **hints))

    def execute(self, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
        """Run a request; a failure of the work is the response's error, only what kept it from running is raised."""
        return self._run(self._client.execute(request))

    def stream(self, request: execution_pb2.SystemRequest) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Run a request and yield what happens; the last event is `completed`. Closing it cancels the request."""
        events: queue.SimpleQueue[event_pb2.ExecutionEvent | Exception | None] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(self._client.stream(request)) as incoming:
                    async for event in incoming:
                        events.put(event)
                events.put(None)
            except Exception as error:  # noqa: BLE001 - raised again in the thread that reads
                events.put(error)

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while (item := events.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            pumping.cancel()

    def timeline(self, request_id: str) -> list[event_pb2.ExecutionEvent]:
        """Return the stored events of an execution, in sequence."""
        return self._run(self._client.timeline(request_id))

    def get_execution(self, request_id: str) -> execution_pb2.Execution:
        """Tell where an execution stands; raises NotFound."""
        return self._run(self._client.get_execution(request_id))

    def cancel(self, request_id: str) -> execution_pb2.LifecycleState.ValueType:
        """Cancel an execution and return the state it ended in; raises NotFound."""
        return self._run(self._client.cancel(request_id))

    def resume(self, request_id: str) -> execution_pb2.LifecycleState.ValueType:
        """Have an interrupted execution taken up again; returns the state it was in.

        Raises NotFound, and PreconditionFailed for one that is not interrupted.
        """
        return self._run(self._client.resume(request_id))

    def get_usage(self, *, session_id: str = "", model: str = "") -> list[pb.UsageTotal]:
        """Return what ended executions used and cost, by session and model; empty filters are all."""
        return self._run(self._client.get_usage(session_id=session_id, model=model))

    def get_session(self, session_id: str) -> pb.Session:
        """Return a stored conversation; raises NotFound."""
        return self._run(self._client.get_session(session_id))

    def list_sessions(self) -> list[pb.Session]:
        """Return all stored conversations without their messages, last used first."""
        return self._run(self._client.list_sessions())

    def delete_session(self, session_id: str) -> None:
        """Remove a stored conversation; raises NotFound."""
        self._run(self._client.delete_session(session_id))

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
