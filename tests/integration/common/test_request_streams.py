"""Streams of requests over a real socket: who ends them, and what the other side learns."""

import asyncio
from contextlib import aclosing

import grpc
import pytest

from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as rpc
from pagantic.context.v1 import file_pb2
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, InvalidRequest, Overloaded
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_stream
from pagantic_common.rpc.reading import relayed
from pagantic_common.testing.server import serving
from tests.support.doors import open_to_all

NAME = pb.DESCRIPTOR.services_by_name["ContextService"].full_name
LARGE = pb.IngestFilesRequest(content=file_pb2.FilePart(data=bytes(1_000_000)))


class Scripted(rpc.ContextServiceServicer):
    """Reads some requests of each stream, then ends it as `behave` says."""

    def __init__(self, behave):
        self.behave = behave
        self.ended = asyncio.Event()

    async def IngestFiles(self, requests, context):
        try:
            async for response in self.behave(requests):
                yield response
        finally:
            self.ended.set()

    def registration(self):
        def add_to(server):
            rpc.add_ContextServiceServicer_to_server(self, server)

        return Registration(NAME, add_to, open_to_all(NAME))


async def endless(count=10**9):
    for _ in range(count):
        yield LARGE


def call(channel, requests):
    return call_stream("context", rpc.ContextServiceStub(channel).IngestFiles, requests, 20)


async def echo(requests):
    async for _ in requests:
        yield pb.IngestFilesResponse()


async def test_every_request_arrives_and_every_response_comes_back():
    async with serving([Scripted(echo).registration()]) as (channel, _):
        assert len([response async for response in call(channel, endless(5))]) == 5


@pytest.mark.parametrize("read_before", [0, 1, 7])
async def test_an_error_of_the_service_is_not_lost_while_requests_are_sent(read_before):
    async def refuse(requests):
        for _ in range(read_before):
            await anext(requests)
            yield pb.IngestFilesResponse()
        raise Overloaded("too many files", code=ErrorCode.INFERENCE_OVERLOADED, retry_after_s=3.0)

    async with serving([Scripted(refuse).registration()]) as (channel, _):
        for _ in range(10):
            with pytest.raises(Overloaded, match="too many files") as refused:
                [response async for response in call(channel, endless())]
            assert (refused.value.code, refused.value.retry_after_s) == (ErrorCode.INFERENCE_OVERLOADED, 3.0)


async def test_an_error_of_the_requests_ends_the_call_and_is_raised():
    async def broken():
        yield LARGE
        raise InvalidRequest("the file is gone")

    service = Scripted(echo)
    async with serving([service.registration()]) as (channel, _):
        with pytest.raises(InvalidRequest, match="the file is gone"):
            [response async for response in call(channel, broken())]
        await asyncio.wait_for(service.ended.wait(), 60)


async def test_a_caller_that_leaves_ends_the_service_and_its_own_requests():
    closed = asyncio.Event()

    async def requests():
        try:
            async for request in endless():
                yield request
        finally:
            closed.set()

    service = Scripted(echo)
    async with serving([service.registration()]) as (channel, _):
        sent = requests()
        async with aclosing(sent), aclosing(call(channel, sent)) as responses:
            await anext(responses)
        await asyncio.wait_for(closed.wait(), 60)
        await asyncio.wait_for(service.ended.wait(), 60)


async def test_a_request_that_cannot_be_read_is_refused():
    async with serving([Scripted(echo).registration()]) as (channel, _):
        method = channel.stream_stream(f"/{NAME}/IngestFiles", request_serializer=bytes)

        async def requests():
            yield b""
            yield b"\xff\xff"

        with pytest.raises(grpc.aio.AioRpcError, match="cannot be read") as refused:
            [response async for response in method(requests())]
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def read_all(requests):
    async for _ in requests:
        pass
    yield pb.IngestFilesResponse()


async def then_silence(*sent):
    for request in sent:
        yield request
    await asyncio.Event().wait()


@pytest.mark.parametrize("sent", [[], [LARGE, LARGE]])
async def test_a_stream_whose_parts_stay_away_is_ended(sent):
    service = Scripted(read_all)
    async with serving([service.registration()], max_silence_s=0.3) as (channel, _):
        with pytest.raises(DeadlineExceeded, match=r"no part of the stream came for 0.3 s \(MAX_SILENCE_S\)"):
            [response async for response in call(channel, then_silence(*sent))]
        await asyncio.wait_for(service.ended.wait(), 60)


async def test_a_stream_may_be_slow_while_the_service_works():
    async def work(requests):
        async for _ in requests:
            await asyncio.sleep(0.4)
            yield pb.IngestFilesResponse()

    async with serving([Scripted(work).registration()], max_silence_s=0.3, max_upload_s=0.3) as (channel, _):
        assert len([response async for response in call(channel, endless(3))]) == 3


async def test_a_stream_whose_parts_come_slowly_for_ever_is_ended():
    async def drip():
        while True:
            yield LARGE
            await asyncio.sleep(0.1)

    async with serving([Scripted(read_all).registration()], max_silence_s=5, max_upload_s=1) as (channel, _):
        with pytest.raises(DeadlineExceeded, match=r"took more than 1 s \(MAX_UPLOAD_S\)"):
            [response async for response in call(channel, drip())]


async def test_a_relay_leaves_the_limits_to_the_service_behind_it():
    """The service behind works for longer than a silence, and the caller waits for it before it sends more."""
    worked = asyncio.Event()

    async def work(requests):
        async for _ in requests:
            await asyncio.sleep(0.5)
            yield pb.IngestFilesResponse()
            worked.set()

    async def in_step():
        yield LARGE
        await worked.wait()
        yield LARGE

    async with serving([Scripted(work).registration()], max_silence_s=5) as (behind, _):

        async def relay(requests):
            async for response in call(behind, relayed(requests)):
                yield response

        async with serving([Scripted(relay).registration()], max_silence_s=0.2) as (channel, _):
            assert len([response async for response in call(channel, in_step())]) == 2

        async with serving([Scripted(relay).registration()], max_silence_s=0.2) as (channel, _):
            method = channel.stream_stream(f"/{NAME}/IngestFiles", request_serializer=bytes)
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be read"):
                [response async for response in method(aiter_of([b"", b"\xff\xff"]))]


async def aiter_of(items):
    for item in items:
        yield item
