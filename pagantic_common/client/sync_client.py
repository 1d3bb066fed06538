"""The client for programs without asyncio: runs the asyncio client on an event loop in its own thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from pydantic import TypeAdapter

from pagantic.orchestrator.v1 import event_pb2, execution_pb2, plan_pb2, session_pb2, usage_total_pb2
from pagantic_common.client.async_client import DEFAULT_TIMEOUT_S, VALIDATION_RETRIES, AsyncClient
from pagantic_common.client.hints import Options
from pagantic_common.client.requests import Messages
from pagantic_common.client.typed_output import StructuredResult, ValueT
from pagantic_common.domain.addresses import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.messages import ToolChoice

ResultT = TypeVar("ResultT")


class Client:
    """Talks to one orchestrator; threads may share it. Use it as a context manager, or close it.

    Methods and errors are those of AsyncClient.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._client = AsyncClient(address, timeout_s=timeout_s, max_message_bytes=max_message_bytes)
        self.address = self._client.address
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
        self._run(_cancel_others())
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
        **options: Unpack[Options],
    ) -> execution_pb2.SystemResponse:
        """Take a chat turn; raises PaganticError when it failed. Arguments are those of `chat_request`."""
        return self._run(
            self._client.chat(
                text_or_messages, session_id=session_id, tools=tools, tool_choice=tool_choice, system=system, **options
            )
        )

    @overload
    def structured(
        self,
        text_or_messages: Messages,
        output_type: type[ValueT] | TypeAdapter[ValueT],
        *,
        full: Literal[False] = False,
        validation_retries: int = VALIDATION_RETRIES,
        tools: Sequence[str] = (),
        system: str = "",
        **options: Unpack[Options],
    ) -> ValueT: ...

    @overload
    def structured(
        self,
        text_or_messages: Messages,
        output_type: type[ValueT] | TypeAdapter[ValueT],
        *,
        full: Literal[True],
        validation_retries: int = VALIDATION_RETRIES,
        tools: Sequence[str] = (),
        system: str = "",
        **options: Unpack[Options],
    ) -> StructuredResult[ValueT]: ...

    def structured(
        self,
        text_or_messages: Messages,
        output_type: type[ValueT] | TypeAdapter[ValueT],
        *,
        full: bool = False,
        validation_retries: int = VALIDATION_RETRIES,
        tools: Sequence[str] = (),
        system: str = "",
        **options: Unpack[Options],
    ) -> ValueT | StructuredResult[ValueT]:
        """Return a value of `output_type` made from the text; see `AsyncClient.structured`."""
        made: ValueT | StructuredResult[ValueT] = self._run(
            self._client.structured(  # type: ignore[call-overload]
                text_or_messages,
                output_type,
                full=full,
                validation_retries=validation_retries,
                tools=tools,
                system=system,
                **options,
            )
        )
        return made

    def vote(
        self,
        text_or_messages: Messages,
        schema: Mapping[str, Any] | bool | str,
        *,
        n: int = 0,
        strategy: str = "majority",
        min_agreement: float = 0.0,
        early_stop: bool = False,
        system: str = "",
        **options: Unpack[Options],
    ) -> execution_pb2.SystemResponse:
        """Take a vote; raises PaganticError when it failed. Arguments are those of `vote_request`."""
        return self._run(
            self._client.vote(
                text_or_messages,
                schema,
                n=n,
                strategy=strategy,
                min_agreement=min_agreement,
                early_stop=early_stop,
                system=system,
                **options,
            )
        )

    def execute(self, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
        """Run a request. Raises the error of a request that did not run; a failed run is the response's error."""
        return self._run(self._client.execute(request))

    def stream(self, request: execution_pb2.SystemRequest) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Run a request and yield its events; the last is `completed`. Closing the generator cancels the request."""
        events: queue.SimpleQueue[event_pb2.ExecutionEvent | Exception | None] = queue.SimpleQueue()

        async def pump() -> None:
            end: Exception | None = Unavailable("the client was closed")
            try:
                async with aclosing(self._client.stream(request)) as incoming:
                    async for event in incoming:
                        events.put(event)
                end = None
            except Exception as error:  # noqa: BLE001 - raised again in the thread that reads
                end = error
            finally:
                events.put(end)

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
        """Return an execution with its current state; raises NotFound."""
        return self._run(self._client.get_execution(request_id))

    def cancel(self, request_id: str) -> execution_pb2.LifecycleState.ValueType:
        """Cancel an execution and return the state it ended in; raises NotFound."""
        return self._run(self._client.cancel(request_id))

    def resume(self, request_id: str) -> execution_pb2.LifecycleState.ValueType:
        """Resume an interrupted execution; returns the state from which it continues.

        Raises NotFound, and PreconditionFailed for an execution that is not interrupted.
        """
        return self._run(self._client.resume(request_id))

    def get_usage(self, *, session_id: str = "", model: str = "") -> list[usage_total_pb2.UsageTotal]:
        """Return the usage and cost of ended executions by session and model; an empty filter matches all."""
        return self._run(self._client.get_usage(session_id=session_id, model=model))

    def list_executions(
        self,
        *,
        session_id: str = "",
        state: execution_pb2.LifecycleState.ValueType = execution_pb2.LIFECYCLE_STATE_UNSPECIFIED,
        limit: int = 100,
    ) -> list[execution_pb2.Execution]:
        """Return executions without their responses, newest first; an empty filter matches all."""
        return self._run(self._client.list_executions(session_id=session_id, state=state, limit=limit))

    def create_plan(self, request: execution_pb2.SystemRequest) -> plan_pb2.ExecutionPlan:
        """Return the checked plan of a PLAN request without running it."""
        return self._run(self._client.create_plan(request))

    def update_session(
        self, session_id: str, values: Mapping[str, Any], *, removed: Sequence[str] = ()
    ) -> session_pb2.Session:
        """Set values of a session, as JSON, and remove others; returns the session without its messages."""
        return self._run(self._client.update_session(session_id, values, removed=removed))

    def get_session(self, session_id: str) -> session_pb2.Session:
        """Return a stored conversation; raises NotFound."""
        return self._run(self._client.get_session(session_id))

    def list_sessions(self) -> list[session_pb2.Session]:
        """Return all stored conversations without their messages, the last used first."""
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


async def _cancel_others() -> None:
    """Cancel the other tasks of this loop, so that readers of streams get an error."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
