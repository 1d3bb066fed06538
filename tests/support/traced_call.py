"""Makes calls with recorded spans and prints them: `python -m tests.support.traced_call`.

The log, on the standard error, has what the service says of the call that fails there.
"""

import asyncio
import json
from contextlib import aclosing, suppress

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pagantic.tools.v1 import tools_service_pb2, tools_service_pb2_grpc
from pagantic_common.domain.errors import Internal
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.settings import LogFormat
from pagantic_common.telemetry.logging import set_up_logging
from pagantic_common.testing.server import serving
from tests.support.doors import open_to_all

NAME = "pagantic.tools.v1.ToolService"


class NoTools(tools_service_pb2_grpc.ToolServiceServicer):
    async def ListTools(self, _request, _context):
        return tools_service_pb2.ListToolsResponse()

    async def SearchTools(self, _request, _context):
        raise ValueError("a bug")

    async def ExecuteToolStream(self, _request, _context):
        while True:
            yield tools_service_pb2.ExecuteToolStreamResponse()

    def add_to(self, server):
        tools_service_pb2_grpc.add_ToolServiceServicer_to_server(self, server)


async def call_once():
    async with serving([Registration(NAME, NoTools().add_to, open_to_all(NAME))]) as (channel, _address):
        stub = tools_service_pb2_grpc.ToolServiceStub(channel)
        await call_unary("tools", stub.ListTools, tools_service_pb2.ListToolsRequest())
        with suppress(Internal):
            await call_unary("tools", stub.SearchTools, tools_service_pb2.SearchToolsRequest())
        asked = tools_service_pb2.ExecuteToolRequest()
        async with aclosing(call_stream("tools", stub.ExecuteToolStream, asked)) as responses:
            await anext(responses)


def recording():
    """Record every span of this process from now on; return where they are kept."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def print_spans(exporter):
    """Print the ended spans as a line of JSON."""
    print(  # noqa: T201
        json.dumps(
            [
                {
                    "name": span.name,
                    "kind": span.kind.name,
                    "has_failed": not span.status.is_ok,
                    "error_type": span.attributes.get("error.type"),
                    "trace_id": f"{span.context.trace_id:032x}",
                    "span_id": span.context.span_id,
                    "parent_id": span.parent.span_id if span.parent else None,
                }
                for span in exporter.get_finished_spans()
            ]
        )
    )


def main():
    exporter = recording()
    set_up_logging("tools", level="INFO", log_format=LogFormat.JSON)
    asyncio.run(call_once())
    print_spans(exporter)


if __name__ == "__main__":
    main()
