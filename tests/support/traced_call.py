"""Makes one call with recorded spans and prints them: `python -m tests.support.traced_call`."""

import asyncio
import json

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pagantic.tools.v1 import tools_service_pb2, tools_service_pb2_grpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_unary
from pagantic_common.testing.server import serving
from tests.support.doors import open_to_all

NAME = "pagantic.tools.v1.ToolService"


class NoTools(tools_service_pb2_grpc.ToolServiceServicer):
    async def ListTools(self, _request, _context):
        return tools_service_pb2.ListToolsResponse()

    def add_to(self, server):
        tools_service_pb2_grpc.add_ToolServiceServicer_to_server(self, server)


async def call_once():
    async with serving([Registration(NAME, NoTools().add_to, open_to_all(NAME))]) as (channel, _address):
        stub = tools_service_pb2_grpc.ToolServiceStub(channel)
        await call_unary("tools", stub.ListTools, tools_service_pb2.ListToolsRequest())


def main():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    asyncio.run(call_once())
    print(  # noqa: T201
        json.dumps(
            [
                {
                    "name": span.name,
                    "kind": span.kind.name,
                    "trace_id": span.context.trace_id,
                    "span_id": span.context.span_id,
                    "parent_id": span.parent.span_id if span.parent else None,
                }
                for span in exporter.get_finished_spans()
                if "ListTools" in span.name
            ]
        )
    )


if __name__ == "__main__":
    main()
