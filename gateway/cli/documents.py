"""Commands of the context service: list and delete collections. Other commands call the service as these do.

With an API key they go through the orchestrator, to the collections of the key's tenant; without one they call the
context service itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import grpc
import typer

from gateway.cli import options
from gateway.cli.output import note, print_json, reporting_errors, show
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic_common.client.credentials import credentials_for, has_key
from pagantic_common.client.tables import cell, list_table
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import call_stream, call_unary

ResultT = TypeVar("ResultT")
Address = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="PAGANTIC_CONTEXT_ADDRESS",
        help="Address of the context service; with an API key, the orchestrator's is used unless this is given.",
    ),
]

collections = typer.Typer(help="List and delete collections of documents.", no_args_is_help=True)


@collections.command("list", cls=options.PlainCommand)
def list_collections(
    *,
    as_json: options.AsJson = False,
    timeout: options.Timeout = 10.0,
    address: Address = "",
) -> None:
    """List collections."""
    with reporting_errors():
        request = pb.ListCollectionsRequest()
        listed = call_context(address, timeout, lambda context: context.call(context.stub.ListCollections, request))
    if as_json:
        print_json(listed)
        return
    table = list_table(("name", "documents", "chunks", "created"), right={"documents", "chunks"})
    for collection in listed.collections:
        created = collection.created_at.ToDatetime().isoformat(sep=" ", timespec="minutes")
        counts = (str(collection.document_count), str(collection.chunk_count))
        table.add_row(cell(collection.name), *counts, f"{created} UTC")
    show(table)


@collections.command("delete", cls=options.PlainCommand)
def delete_collection(
    name: Annotated[str, typer.Argument(metavar="COLLECTION", help="Collection to delete, with its documents.")],
    *,
    timeout: options.Timeout = 10.0,
    address: Address = "",
) -> None:
    """Delete a collection and its documents."""
    with reporting_errors():
        request = pb.DeleteCollectionRequest(name=name)
        call_context(address, timeout, lambda context: context.call(context.stub.DeleteCollection, request))
    note(f"{name} deleted")


@dataclass(frozen=True, slots=True)
class ContextCalls:
    """The context service, called in the name of the key's tenant."""

    stub: pb_grpc.ContextServiceAsyncStub
    credentials: str
    timeout_s: float

    async def call(self, method: grpc.aio.UnaryUnaryMultiCallable[Any, ResultT], request: Any) -> ResultT:
        """Make a unary call."""
        return await call_unary("context", method, request, self.timeout_s, credentials=self.credentials)

    def call_stream(
        self, method: grpc.aio.StreamStreamMultiCallable[Any, ResultT], requests: AsyncIterator[Any]
    ) -> AsyncGenerator[ResultT, None]:
        """Make a call with a stream of requests, of any length in all."""
        return call_stream("context", method, requests, credentials=self.credentials)


def call_context(address: str, timeout_s: float, send: Callable[[ContextCalls], Awaitable[ResultT]]) -> ResultT:
    """Call the context service, or the orchestrator before it where there is an API key."""

    async def connect_and_send() -> ResultT:
        target, credentials = find_target(address or options.CONTEXT, os.environ), ""
        if not address and has_key(os.environ):
            target = find_target(os.environ.get("PAGANTIC_ADDRESS") or options.ORCHESTRATOR, os.environ)
            credentials = credentials_for(target, None, os.environ)
        async with target.open(MAX_MESSAGE_BYTES) as channel:
            return await send(ContextCalls(pb_grpc.ContextServiceStub(channel), credentials, timeout_s))

    return asyncio.run(connect_and_send())
