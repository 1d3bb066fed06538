"""A client whose orchestrator is replaced sends a named request again, and no other."""

import contextlib

import grpc
import pytest

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.client import AsyncClient, chat_request
from pagantic_common.domain.errors import Unavailable


class Away(rpc.OrchestratorServiceServicer):
    """Refuses its first calls as an orchestrator that is replaced does."""

    def __init__(self, refusals, *, after_events=0):
        self.ids = []
        self._refusals = refusals
        self._after_events = after_events

    async def Execute(self, request, context):
        self.ids.append(request.request_id)
        if len(self.ids) <= self._refusals:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
        return execution_pb2.SystemResponse(request_id=request.request_id, content="hello")

    async def ExecuteStream(self, request, context):
        self.ids.append(request.request_id)
        for sequence in range(self._after_events):
            yield event_pb2.ExecutionEvent(sequence=sequence)
        if len(self.ids) <= self._refusals:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
        yield event_pb2.ExecutionEvent(sequence=99)


@contextlib.asynccontextmanager
async def replaced(servicer, **options):
    server = grpc.aio.server()
    rpc.add_OrchestratorServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AsyncClient(f"127.0.0.1:{port}", **options) as client:
            yield client
    finally:
        await server.stop(0)


async def test_a_named_request_is_sent_again_while_its_orchestrator_is_replaced():
    away = Away(2)
    async with replaced(away) as client:
        assert (await client.chat("hello", request_id="r1")).content == "hello"
    assert away.ids == ["r1"] * 3


@pytest.mark.parametrize(("request_id", "patience_s"), [("", 10.0), ("r1", 0.0), ("r1", 0.1)])
async def test_a_request_without_a_name_or_patience_is_sent_once(request_id, patience_s):
    away = Away(2)
    async with replaced(away, patience_s=patience_s) as client:
        with pytest.raises(Unavailable):
            await client.chat("hello", request_id=request_id)
    assert len(away.ids) == 1


async def test_a_stream_is_begun_again_but_never_repeated():
    away = Away(1)
    async with replaced(away) as client:
        assert [event.sequence async for event in client.stream(chat_request("hello", request_id="r1"))] == [99]
    away = Away(1, after_events=2)
    async with replaced(away) as client:
        stream = client.stream(chat_request("hello", request_id="r1"))
        assert [(await anext(stream)).sequence for _ in range(2)] == [0, 1]
        with pytest.raises(Unavailable):
            await anext(stream)
    assert len(away.ids) == 1
