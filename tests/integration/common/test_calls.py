"""Deadline, correlation, cancellation and errors over a real socket, one service calling another."""

import asyncio
import time

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, Internal, InvalidRequest, Overloaded
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_unary
from pagantic_common.rpc.process.listening import CannotListen
from pagantic_common.rpc.process.server import start_server
from pagantic_common.settings import ServiceSettings
from pagantic_common.telemetry.scope import current_correlation, current_deadline, work_scope
from pagantic_common.testing.server import serving
from tests.support.doors import open_to_all

NAME = pb.DESCRIPTOR.services_by_name["ToolService"].full_name


class Scripted(rpc.ToolServiceServicer):
    """Does what `behave` does with each ListTools call."""

    def __init__(self, behave):
        self.behave = behave
        self.reached = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def ListTools(self, request, context):
        self.reached.set()
        try:
            await self.behave()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return pb.ListToolsResponse()

    def registration(self):
        return Registration(NAME, lambda server: rpc.add_ToolServiceServicer_to_server(self, server), open_to_all(NAME))


async def list_tools(channel, timeout_s=5.0):
    return await call_unary("tools", rpc.ToolServiceStub(channel).ListTools, pb.ListToolsRequest(), timeout_s)


async def wait_forever():
    await asyncio.Event().wait()


async def test_cancelling_a_unary_call_reaches_the_service():
    service = Scripted(wait_forever)
    async with serving([service.registration()]) as (channel, _address):
        calling = asyncio.create_task(list_tools(channel, 60))
        await service.reached.wait()
        calling.cancel()
        await asyncio.wait_for(service.cancelled.wait(), 60)
        with pytest.raises(asyncio.CancelledError):
            await calling


async def test_the_deadline_and_the_correlation_of_the_caller_are_the_callees():
    seen = {}

    async def look():
        seen["left_s"] = current_deadline().remaining_s(time.monotonic())
        seen["correlation"] = current_correlation()

    async with serving([Scripted(look).registration()]) as (channel, _address):
        scope = CorrelationContext(request_id="r1", session_id="s1", step_name="schön", caused_by="c1")
        with work_scope(correlation=scope, deadline=Deadline.after(time.monotonic(), 3.0)):
            await list_tools(channel, 60)
    assert 2.0 < seen["left_s"] <= 3.0 * 1.01  # gRPC rounds what it tells of a deadline up, by up to a hundredth
    found = seen["correlation"]
    assert (found.request_id, found.session_id, found.step_name, found.caused_by) == ("r1", "s1", "schön", "c1")
    assert found.trace_id


async def test_a_deadline_that_has_passed_makes_no_call():
    service = Scripted(wait_forever)
    async with serving([service.registration()]) as (channel, _address):
        with work_scope(deadline=Deadline(time.monotonic() - 1)), pytest.raises(DeadlineExceeded):
            await list_tools(channel)
        assert not service.reached.is_set()
        with pytest.raises(DeadlineExceeded):
            await list_tools(channel, 0.1)


async def test_errors_arrive_as_they_were_raised_and_bugs_leak_nothing():
    raised = Overloaded("full", code=ErrorCode.INFERENCE_OVERLOADED, details={"limit": 3}, retry_after_s=2.0)

    async def fail():
        raise raised

    async def break_down():
        raise ZeroDivisionError("secret")

    async with serving([Scripted(fail).registration()]) as (channel, _address):
        with pytest.raises(Overloaded) as caught:
            await list_tools(channel, 1.5)
        assert caught.value.failure == raised.failure
        assert caught.value.retry_after_s == 2.0
    async with serving([Scripted(break_down).registration()]) as (channel, _address):
        with pytest.raises(Internal, match="internal error") as broken:
            await list_tools(channel)
        assert "secret" not in str(broken.value)


async def test_an_id_in_metadata_that_is_none_is_refused():
    async with serving([Scripted(wait_forever).registration()]) as (channel, _address):
        with work_scope(correlation=CorrelationContext(request_id="no spaces")), pytest.raises(InvalidRequest):
            await list_tools(channel)


async def test_a_port_that_is_taken_is_an_error_and_not_shared():
    async with serving([Scripted(wait_forever).registration()]) as (_channel, address):
        with pytest.raises(CannotListen, match="the port is in use"):
            await start_server(ServiceSettings(port=int(address.rpartition(":")[2])), [])


async def test_reflection_keeps_comments():
    async with (
        serving([Scripted(wait_forever).registration()]) as (_channel, address),
        grpc.aio.insecure_channel(address) as plain,
    ):
        call = reflection_pb2_grpc.ServerReflectionStub(plain).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=NAME))
        reply = await call.read()
        await call.done_writing()
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in reply.file_descriptor_response.file_descriptor_proto
    ]
    service = next(file for file in files if file.name.endswith("tools_service.proto"))
    comments = [location.leading_comments for location in service.source_code_info.location]
    assert any("Keeps the registry of tools and runs them." in comment for comment in comments)
