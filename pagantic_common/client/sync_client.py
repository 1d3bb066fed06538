"""The client for programs without asyncio. It runs the asyncio client on an event loop in a separate thread.

Each process starts its thread at its first call, so a client that was created before a fork works in the child.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client.async_client import CANCEL_S, PATIENCE_S, VALIDATION_RETRIES, AsyncClient
from pagantic_common.client.connections import CLOSE_S
from pagantic_common.client.following import FOLLOWING_PATIENCE_S, OnLost
from pagantic_common.client.hints import Options
from pagantic_common.client.requests import Messages
from pagantic_common.client.typed_output import StructuredResult, ValueT
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES, REQUEST_TIMEOUT_S
from pagantic_common.domain.errors import PaganticError, PreconditionFailed, Unavailable
from pagantic_common.rpc.channel import check_not_forked, forked, is_child

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ResultT = TypeVar("ResultT")
ArgumentsP = ParamSpec("ArgumentsP")
CHECK_S = 1.0  # Time between checks that the thread is still running.
# A gRPC lock that was held at the fork blocks the child's loop forever.
STUCK_S = 3.0
# An event, the failure or the end (None) of a stream, or a call for the reading thread.
_Item = event_pb2.ExecutionEvent | Exception | Callable[[], None] | None


def _blocking(
    method: Callable[Concatenate[AsyncClient, ArgumentsP], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[Client, ArgumentsP], ResultT]:
    """Return a method of Client that accepts the arguments of an AsyncClient method and waits for its result."""

    @functools.wraps(method)
    def call(client: Client, /, *arguments: ArgumentsP.args, **options: ArgumentsP.kwargs) -> ResultT:
        return client._run(method(client._client, *arguments, **options))  # noqa: SLF001 - it is Client's own method

    return call


class Client:
    """Calls an orchestrator, and may be shared by threads. Use it as a context manager, or call `close`.

    It has the methods of AsyncClient and raises the same errors.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        api_key: str | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._client = AsyncClient(
            address,
            timeout_s=timeout_s,
            patience_s=patience_s,
            api_key=api_key,
            max_message_bytes=max_message_bytes,
        )
        self.address = self._client.address
        self._is_closed = False
        self._threads: dict[int, _LoopThread] = {}  # by process id, because a forked process needs its own

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection within a few seconds, and end running calls. A second call does nothing.

        In a forked process, the method does not close the parent's connection.
        """
        self._is_closed = True
        thread = self._threads.pop(os.getpid(), None)
        if thread is not None:
            thread.end(self._client.close())

    chat = _blocking(AsyncClient.chat)
    ask = _blocking(AsyncClient.ask)
    vote = _blocking(AsyncClient.vote)
    decide = _blocking(AsyncClient.decide)
    execute = _blocking(AsyncClient.execute)
    timeline = _blocking(AsyncClient.timeline)
    timeline_page = _blocking(AsyncClient.timeline_page)
    list_steps = _blocking(AsyncClient.list_steps)
    list_steps_page = _blocking(AsyncClient.list_steps_page)
    get_execution = _blocking(AsyncClient.get_execution)
    cancel = _blocking(AsyncClient.cancel)
    resume = _blocking(AsyncClient.resume)
    signal = _blocking(AsyncClient.signal)
    send_signal = _blocking(AsyncClient.send_signal)
    list_waits = _blocking(AsyncClient.list_waits)
    list_waits_page = _blocking(AsyncClient.list_waits_page)
    get_usage = _blocking(AsyncClient.get_usage)
    list_executions = _blocking(AsyncClient.list_executions)
    list_executions_page = _blocking(AsyncClient.list_executions_page)
    update_execution = _blocking(AsyncClient.update_execution)
    delete_execution = _blocking(AsyncClient.delete_execution)
    list_tools = _blocking(AsyncClient.list_tools)
    list_models = _blocking(AsyncClient.list_models)
    embed = _blocking(AsyncClient.embed)
    rerank = _blocking(AsyncClient.rerank)
    count_tokens = _blocking(AsyncClient.count_tokens)
    list_prompt_templates = _blocking(AsyncClient.list_prompt_templates)
    render_prompt_template = _blocking(AsyncClient.render_prompt_template)
    list_collections = _blocking(AsyncClient.list_collections)
    get_collection = _blocking(AsyncClient.get_collection)
    create_collection = _blocking(AsyncClient.create_collection)
    delete_collection = _blocking(AsyncClient.delete_collection)
    search = _blocking(AsyncClient.search)
    retrieve = _blocking(AsyncClient.retrieve)
    ingest_files = _blocking(AsyncClient.ingest_files)
    ingest_content = _blocking(AsyncClient.ingest_content)
    list_approvals = _blocking(AsyncClient.list_approvals)
    list_approvals_page = _blocking(AsyncClient.list_approvals_page)
    resolve_approval = _blocking(AsyncClient.resolve_approval)
    approve = _blocking(AsyncClient.approve)
    reject = _blocking(AsyncClient.reject)
    create_plan = _blocking(AsyncClient.create_plan)
    update_session = _blocking(AsyncClient.update_session)
    get_session = _blocking(AsyncClient.get_session)
    list_sessions = _blocking(AsyncClient.list_sessions)
    change_session = _blocking(AsyncClient.change_session)
    list_sessions_page = _blocking(AsyncClient.list_sessions_page)
    get_session_page = _blocking(AsyncClient.get_session_page)
    delete_session = _blocking(AsyncClient.delete_session)
    create_key = _blocking(AsyncClient.create_key)
    list_keys = _blocking(AsyncClient.list_keys)
    revoke_key = _blocking(AsyncClient.revoke_key)
    set_budget = _blocking(AsyncClient.set_budget)
    budgets = _blocking(AsyncClient.budgets)
    list_budgets = _blocking(AsyncClient.list_budgets)
    list_audit_records = _blocking(AsyncClient.list_audit_records)
    list_replicas = _blocking(AsyncClient.list_replicas)
    load_model = _blocking(AsyncClient.load_model)
    unload_model = _blocking(AsyncClient.unload_model)

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
        """Return a value of `output_type` that the model makes from the text. See `AsyncClient.structured`."""
        result: ValueT | StructuredResult[ValueT] = self._run(
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
        return result

    def stream(self, request: execution_pb2.SystemRequest) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Run a request and yield its events up to `completed`. Closing the generator cancels the request."""
        return self._read(lambda: self._client.stream(request))

    def follow(self, request_id: str, *, after_sequence: int = 0) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Yield the events of an execution after `after_sequence`, up to `completed`.

        Leaving early does not cancel the execution.
        """
        return self._read(lambda: self._client.follow(request_id, after_sequence=after_sequence))

    def follow_to_end(
        self,
        request_or_id: execution_pb2.SystemRequest | str,
        *,
        after_sequence: int = 0,
        on_lost: OnLost | None = None,
        patience_s: float = FOLLOWING_PATIENCE_S,
    ) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Yield the events of an execution up to `completed`, over lost connections and without repeating text.

        See `AsyncClient.follow_to_end`. `on_lost` is called in the reading thread, after the events that preceded the
        loss.
        """
        calls: queue.SimpleQueue[_Item] = queue.SimpleQueue()

        def note_lost(failure: PaganticError) -> None:
            if on_lost is not None:
                calls.put(functools.partial(on_lost, failure))

        return self._read(
            lambda: self._client.follow_to_end(
                request_or_id, after_sequence=after_sequence, on_lost=note_lost, patience_s=patience_s
            ),
            calls,
        )

    def _read(
        self,
        begin: Callable[[], AsyncGenerator[event_pb2.ExecutionEvent, None]],
        items: queue.SimpleQueue[_Item] | None = None,
    ) -> Generator[event_pb2.ExecutionEvent, None, None]:
        """Yield the events of a stream that runs on the event loop. The reading thread makes the calls in the queue."""
        items = items or queue.SimpleQueue()

        async def pump() -> None:
            end: Exception | None = _closed()
            try:
                async with aclosing(begin()) as incoming:
                    async for event in incoming:
                        items.put(event)
                end = None
            except Exception as error:  # noqa: BLE001 - raised again in the thread that reads
                end = error
            finally:
                items.put(end)

        thread = self._thread()
        pumping = thread.run(_started(pump()))
        try:
            while (item := thread.next_of(items)) is not None:
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, event_pb2.ExecutionEvent):
                    yield item
                else:
                    item()
        finally:
            thread.leave(pumping)

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        try:
            thread = self._thread()
        except BaseException:
            work.close()
            raise
        return thread.run(work)

    def _thread(self) -> _LoopThread:
        """Return the thread of this process. Raises PreconditionFailed after `close`."""
        if self._is_closed:
            raise PreconditionFailed("the client was closed: make another client")
        pid = os.getpid()
        thread = self._threads.get(pid)
        if thread is None:
            # No lock is taken here, because a process may be forked while another thread holds it.
            started = _LoopThread()
            thread = self._threads.setdefault(pid, started)
            if thread is not started:
                started.stop()
        return thread


class _LoopThread:
    """An event loop in a separate thread. It runs in the process that made it, and not in a child of a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._unanswered_s: float | None = None  # The loop has not run a callback since this time.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pagantic-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine on the loop, and return its result. Raises Unavailable if the loop ends meanwhile."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # Another thread closed the loop.
            work.close()
            raise _closed() from None
        try:
            while True:
                with suppress(TimeoutError):
                    return future.result(CHECK_S)
                if future.done():
                    return future.result()
                self._check_running()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def next_of(self, items: queue.SimpleQueue[ResultT]) -> ResultT:
        """Return the next item that the loop puts into a queue. Raises the errors of `run`, and PreconditionFailed."""
        while True:
            if os.getpid() != self._pid:
                check_not_forked()  # Items from before a fork belong to the parent, so this check precedes the read.
            with suppress(queue.Empty):
                return items.get(timeout=CHECK_S)
            self._check_running()

    def _check_running(self) -> None:
        """Raise an error if the loop has ended, or if gRPC blocks it because of a fork."""
        if not self._thread.is_alive():
            raise _closed()
        now_s = time.monotonic()
        if self._unanswered_s is None:
            self._unanswered_s = now_s
            self._loop.call_soon_threadsafe(self._answer)
        elif is_child() and now_s - self._unanswered_s > STUCK_S:
            raise forked()

    def _answer(self) -> None:
        self._unanswered_s = None

    def leave(self, task: asyncio.Task[None]) -> None:
        """Cancel a task, and wait until it has ended."""
        if task.done() or not self._thread.is_alive():
            return
        if threading.current_thread() is self._thread:  # The garbage collector runs in any thread.
            task.cancel()
            return
        self.run(_ended(task))

    def end(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, cancel all tasks and stop. A coroutine or thread that stays stuck is left running."""
        ending = asyncio.run_coroutine_threadsafe(_closed_and_cancelled(closing), self._loop)
        try:
            with suppress(TimeoutError):
                ending.result(CANCEL_S + CLOSE_S)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread, and close the loop unless the thread is stuck."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


def _closed() -> Unavailable:
    return Unavailable("the client was closed")


async def _started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _closed_and_cancelled(closing: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, and then cancel the other tasks of this loop, so that stream readers get an error."""
    await closing
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
