"""A client's `timeout_s` counts in every method and for all attempts of a request, and `close` ends whatever runs."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import partial

import grpc
import pytest

from pagantic.context.v1 import context_service_pb2
from pagantic.orchestrator.v1 import budget_pb2, event_pb2, execution_pb2, key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.client import AsyncClient, Client, chat_request, sync_client
from pagantic_common.client.stored import administration
from pagantic_common.domain.errors import DeadlineExceeded, PaganticError, PreconditionFailed, Unavailable
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving
from tests.unit.client.test_sent_again import Away, replaced

TIMEOUT_S, LIMIT_S = 1.0, 15.0
METHODS = sorted(
    name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_") and name != "close"
)
ARGUMENTS = {
    "metadata": {"a": "b"},
    "output_type": list[int],
    "paths": [__file__],
    "period": budget_pb2.BUDGET_PERIOD_DAY,
    "questions": ["Why?"],
    "request_or_id": chat_request("hi", request_id="r"),
    "schema": {},
    "scopes": [key_pb2.KEY_SCOPE_READ],
    "texts": ["a"],
    "values": {"a": "b"},
    "variables": {"a": "b"},
}


async def parts():
    yield b"text"


def arguments_of(method):
    """Return an argument for each parameter that has no default."""
    given = {}
    for name, parameter in list(inspect.signature(getattr(AsyncClient, method)).parameters.items())[1:]:
        if parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
            continue
        given[name] = ARGUMENTS.get(name, "r")
        if name == "request":
            type_name = parameter.annotation.rpartition(".")[2]
            modules = (execution_pb2, pb, context_service_pb2)
            given[name] = next(getattr(module, type_name) for module in modules if hasattr(module, type_name))()
        if name == "parts":
            given[name] = parts()
    return given


@contextmanager
def silent():
    """Accept connections, and never speak HTTP/2 on them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


class _Hanging(grpc.GenericRpcHandler):
    def service(self, _details):
        return grpc.stream_stream_rpc_method_handler(self._hang)

    async def _hang(self, _requests, _context):
        await asyncio.sleep(3600)
        yield b""


@contextmanager
def hanging():
    """Serve methods that never answer."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start():
        server = grpc.aio.server(handlers=[_Hanging()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module", params=[silent, hanging], ids=["silent", "hanging"])
def address(request):
    with request.param() as at:
        yield at


def ended_in_time(work):
    """Return the error of work that has to end within the limit."""
    errors = []

    def run():
        try:
            result = work()
            if inspect.isgenerator(result):
                list(result)
        except PaganticError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    return errors[0] if errors else None


def test_every_method_ends_in_the_time_of_the_client(address, monkeypatch):
    monkeypatch.setattr(administration, "LOAD_S", TIMEOUT_S)
    with Client(address, timeout_s=TIMEOUT_S) as client, ThreadPoolExecutor(len(METHODS)) as threads:
        calls = {
            method: threads.submit(ended_in_time, partial(getattr(client, method), **arguments_of(method)))
            for method in METHODS
        }
        errors = {method: call.exception() or call.result() for method, call in calls.items()}
    assert {name for name, error in errors.items() if not isinstance(error, (DeadlineExceeded, Unavailable))} == set()


@pytest.mark.parametrize("call", ["execute", "stream"])
async def test_all_attempts_of_a_request_share_its_time(call):
    away = Away(1000)
    async with replaced(away, timeout_s=3.0, patience_s=3600.0) as client, asyncio.timeout(LIMIT_S):
        with pytest.raises(Unavailable):
            await sent(client, call)
    assert len(away.ids) > 1


async def sent(client, call):
    request = chat_request("hi", request_id="r")
    if call == "execute":
        return await client.execute(request)
    return [event async for event in client.stream(request)]


class Timed(rpc.OrchestratorServiceServicer):
    """Refuses the first calls, and notes the time that each call has."""

    def __init__(self, refusals):
        self.left_s = []
        self._refusals = refusals

    async def _note(self, context):
        self.left_s.append(context.time_remaining())
        if len(self.left_s) <= self._refusals:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")

    async def Execute(self, _request, context):
        await self._note(context)
        return execution_pb2.SystemResponse()

    async def ExecuteStream(self, _request, context):
        await self._note(context)
        yield event_pb2.ExecutionEvent(sequence=1)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")

    async def FollowExecution(self, _request, context):
        await self._note(context)
        yield event_pb2.ExecutionEvent(sequence=2, completed=event_pb2.Completed())


@pytest.mark.parametrize(("call", "attempts"), [("execute", 3), ("stream", 3)])
@pytest.mark.parametrize("hints", [{}, {"timeout_s": 20.0}])
async def test_each_further_attempt_has_the_time_that_is_left(call, attempts, hints):
    timed = Timed(2)
    request = chat_request("hi", request_id="r", **hints)
    async with replaced(timed, timeout_s=20.0) as client:
        if call == "execute":
            await client.execute(request)
        else:
            with pytest.raises(Unavailable):
                [event async for event in client.stream(request)]
    assert len(timed.left_s) == attempts
    # The client waits at least 100 ms between two attempts.
    assert all(later < earlier - 0.05 for earlier, later in zip(timed.left_s, timed.left_s[1:], strict=False))


async def test_a_followed_stream_has_the_time_that_is_left():
    timed = Timed(0)
    request = chat_request("hi", request_id="r")
    request.background = True
    async with replaced(timed, timeout_s=20.0) as client, aclosing(client.stream(request)) as events:
        assert [event.sequence async for event in events] == [1, 2]
    begun_s, followed_s = timed.left_s
    assert followed_s < begun_s - 0.05


def test_a_call_of_a_client_that_another_thread_closes_ends():
    with hanging() as at:
        client = Client(at, timeout_s=3600)
        closing = threading.Timer(0.5, client.close)
        closing.start()
        assert isinstance(ended_in_time(client.list_tools), Unavailable)
        closing.join(LIMIT_S)
        assert not closing.is_alive()


def test_a_client_that_was_closed_says_so():
    with serving(ScriptedOrchestrator()) as at:
        client = Client(at)
        client.list_tools()
        client.close()
        for call in (client.list_tools, lambda: list(client.stream(chat_request("hi")))):
            with pytest.raises(PreconditionFailed, match="the client was closed"):
                call()


def test_closing_a_client_whose_thread_is_stuck_ends(monkeypatch):
    monkeypatch.setattr(sync_client, "CLOSE_S", 0.1)
    monkeypatch.setattr(sync_client, "CANCEL_S", 0.1)
    released = threading.Event()
    with serving(ScriptedOrchestrator()) as at:
        client = Client(at)
        client.list_tools()
        (thread,) = client._threads.values()
        thread._loop.call_soon_threadsafe(released.wait)
        assert ended_in_time(client.close) is None
        released.set()
        thread._thread.join(LIMIT_S)


async def test_a_call_that_grpc_does_not_end_is_ended(monkeypatch):
    """As in a process that was forked while other code used gRPC for asyncio."""
    with hanging() as at:
        async with AsyncClient(at, timeout_s=TIMEOUT_S) as client:
            monkeypatch.setattr("grpc.aio._channel._timeout_to_deadline", lambda _timeout: None)
            for call in (
                client.list_tools(),
                sent(client, "execute"),
                sent(client, "stream"),
                read(client.follow("r")),
            ):
                async with asyncio.timeout(LIMIT_S):
                    with pytest.raises(DeadlineExceeded):
                        await call


async def read(events):
    return [event async for event in events]
