"""Services that do what a test says, on ports that it may use again."""

import asyncio
from contextlib import asynccontextmanager

from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_rpc
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.domain.errors import Unsupported
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.server import start_server
from pagantic_common.settings import ServiceSettings
from tests.support.doors import open_to_all


class ScriptedTools(rpc.ToolServiceServicer):
    """Does with each call what `behave` does with its number, from 1 on."""

    def __init__(self, behave):
        self.behave = behave
        self.reached = asyncio.Event()
        self.calls = 0

    async def ListTools(self, request, context):
        await self.take()
        return pb.ListToolsResponse()

    async def ExecuteTool(self, request, context):
        await self.take()
        return pb.ExecuteToolResponse()

    async def take(self):
        self.calls += 1
        self.reached.set()
        await self.behave(self.calls)

    def registration(self):
        name = pb.DESCRIPTOR.services_by_name["ToolService"].full_name
        return Registration(name, lambda server: rpc.add_ToolServiceServicer_to_server(self, server), open_to_all(name))


class ScriptedInference(inference_rpc.InferenceServiceServicer):
    """Streams what `behave` yields for each call's number, from 1 on, and where it wants that for its request."""

    def __init__(self, behave, *, with_request=False):
        self.behave = behave
        self.with_request = with_request
        self.calls = 0

    async def WatchReplica(self, request, context):
        raise Unsupported("this replica reports nothing")
        yield

    async def Infer(self, request, context):
        self.calls += 1
        given = (self.calls, request) if self.with_request else (self.calls,)
        async for response in self.behave(*given):
            yield response

    def registration(self):
        name = inference_pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
        add = inference_rpc.add_InferenceServiceServicer_to_server
        return Registration(name, lambda server: add(self, server), open_to_all(name))


@asynccontextmanager
async def served(*services, port=0):
    """Serve, and give the server and its port; what still runs when this ends is cut."""
    server, _health, port = await start_server(ServiceSettings(port=port), [one.registration() for one in services])
    try:
        yield server, port
    finally:
        await server.stop(grace=0)
