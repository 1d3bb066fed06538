"""Calls the orchestrator as an instrumented caller does: `python -m tests.support.instrumented_call FOLDER`.

The caller's stubs are its own, without the Python client. Prints the spans of caller and services.
"""

import asyncio
import sys
from pathlib import Path

import grpc
from opentelemetry.instrumentation.grpc import GrpcAioInstrumentorClient, GrpcInstrumentorClient

from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.orchestrator_app import orchestrator, system_request
from tests.support.traced_call import print_spans, recording


async def call_twice(folder):
    """Make a call of the asyncio API, and a call from a thread."""
    async with orchestrator(folder) as served:
        async with grpc.aio.insecure_channel(served.address) as channel:
            await rpc.OrchestratorServiceStub(channel).Execute(system_request())
        await asyncio.to_thread(_stream, served.address)


def _stream(address):
    with grpc.insecure_channel(address) as channel:
        list(rpc.OrchestratorServiceStub(channel).ExecuteStream(system_request()))


def main():
    exporter = recording()
    GrpcAioInstrumentorClient().instrument()
    GrpcInstrumentorClient().instrument()
    asyncio.run(call_twice(Path(sys.argv[1])))
    print_spans(exporter)


if __name__ == "__main__":
    main()
