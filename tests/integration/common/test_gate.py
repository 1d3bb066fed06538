"""A server's gate over a real socket: calls that run while their credentials are refused, and odd credentials."""

import asyncio

import grpc
import pytest

from pagantic.orchestrator.v1 import event_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.calls.principal import Principal, PrincipalKind, Scope
from pagantic_common.domain.errors import ErrorCode, Unauthenticated, Unavailable
from pagantic_common.rpc.access import gate
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.testing.server import serving
from tests.support.doors import open_to_all
from tests.support.orchestrator_app import system_request

NAME = "pagantic.orchestrator.v1.OrchestratorService"


class Caller:
    """Knows one caller, until `error` is set."""

    def __init__(self, expires_at=None):
        self.error = None
        self.principal = Principal("acme", "ci", PrincipalKind.API_KEY, frozenset(Scope), "k", expires_at)
        self.asked = []

    async def authenticate(self, credentials):
        self.asked.append(credentials)
        if self.error is not None:
            raise self.error
        return self.principal


class Streams(rpc.OrchestratorServiceServicer):
    """Streams events without end, one each `pause_s`, and answers nothing to a unary call."""

    def __init__(self, pause_s):
        self.pause_s = pause_s
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def ExecuteStream(self, request, context):
        try:
            while True:
                yield event_pb2.ExecutionEvent(action="x" * 1000)
                await asyncio.sleep(self.pause_s)
        finally:
            self.ended.set()

    async def GetUsage(self, request, context):
        self.began.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()

    async def ListSessions(self, request, context):
        return pb.ListSessionsResponse()

    async def lose(self, caller, error):
        """Let checks of the caller fail as soon as its unary call runs."""
        await self.began.wait()
        caller.error = error


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(gate, "RECHECK_S", 0.05)


def registered(servicer, caller):
    return Registration(
        NAME,
        lambda server: rpc.add_OrchestratorServiceServicer_to_server(servicer, server),
        open_to_all(NAME),
        Guard(caller),
    )


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.02, 60.0])
async def test_a_stream_ends_with_its_status_however_fast_it_is(pause_s):
    caller, servicer = Caller(), Streams(pause_s)
    async with serving([registered(servicer, caller)]) as (channel, _):
        for _ in range(5):
            caller.error = None
            servicer.ended.clear()
            stream = call_stream(
                "orchestrator", rpc.OrchestratorServiceStub(channel).ExecuteStream, system_request(), 20
            )
            await anext(stream)
            caller.error = Unauthenticated("no more")
            with pytest.raises(Unauthenticated, match="no more"):
                async for _ in stream:
                    pass
            await asyncio.wait_for(servicer.ended.wait(), 60)


async def test_a_unary_call_ends_with_its_status():
    caller, servicer = Caller(), Streams(0)
    async with serving([registered(servicer, caller)]) as (channel, _):
        stub = rpc.OrchestratorServiceStub(channel)
        call = call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest(), 60)
        with pytest.raises(Unauthenticated, match="no more"):
            await asyncio.gather(call, servicer.lose(caller, Unauthenticated("no more")))
        await asyncio.wait_for(servicer.ended.wait(), 60)


@pytest.mark.parametrize(("error", "expires_at"), [(Unavailable("away"), 1.0), (RuntimeError("broken"), 1.0)])
async def test_a_running_call_ends_when_its_key_expires_though_nobody_can_be_asked(error, expires_at):
    caller, servicer = Caller(expires_at), Streams(0)
    async with serving([registered(servicer, caller)]) as (channel, _):
        stub = rpc.OrchestratorServiceStub(channel)
        call = call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest(), 60)
        with pytest.raises(Unauthenticated) as caught:
            await asyncio.gather(call, servicer.lose(caller, error))
        assert caught.value.code is ErrorCode.AUTH_EXPIRED


async def test_a_running_call_goes_on_while_nobody_can_be_asked_and_its_key_is_valid():
    caller, servicer = Caller(), Streams(0.01)
    async with serving([registered(servicer, caller)]) as (channel, _):
        stream = call_stream("orchestrator", rpc.OrchestratorServiceStub(channel).ExecuteStream, system_request(), 20)
        await anext(stream)
        caller.error = Unavailable("away")
        asked = len(caller.asked)
        while len(caller.asked) < asked + 3:
            await anext(stream)
        caller.error = Unauthenticated("no more")
        with pytest.raises(Unauthenticated):
            async for _ in stream:
                pass


async def test_two_credentials_are_one_too_many_and_none_is_told_apart_from_wrong_ones():
    caller = Caller()
    async with serving([registered(Streams(0), caller)]) as (channel, _):
        stub = rpc.OrchestratorServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListSessions(
                pb.ListSessionsRequest(), metadata=(("authorization", "Bearer a"), ("authorization", "Bearer b"))
            )
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert caller.asked == []
        await stub.ListSessions(pb.ListSessionsRequest())
        await stub.ListSessions(pb.ListSessionsRequest(), metadata=(("authorization", "Bearer a"),))
        assert caller.asked == ["", "Bearer a"]
