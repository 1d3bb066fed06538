"""Commands that list, delete, verify and re-embed collections, and functions that call the context service.

With an API key, calls go through the orchestrator to the collections of the key's tenant. Without a key, they go
directly to the context service, and are signed with the orchestrator's key if callers need keys.
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
from gateway.cli.completion import names_of
from gateway.cli.failures import EXIT_FAILED
from gateway.cli.operator_token import operator_credentials
from gateway.cli.output import note, print_json, reporting_errors, say, show
from gateway.cli.tree import PlainCommand
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic_common.client.credentials import credentials_for, has_key
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.tables import cell, list_table
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.text.terminal import plain_text
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import call_stream, call_unary

NO_MODEL = "none"
ResultT = TypeVar("ResultT")
Address = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="PAGANTIC_CONTEXT_ADDRESS",
        help="Address of the context service; with an API key, the orchestrator's is used unless this is given.",
    ),
]

collections = typer.Typer(help="List, delete and re-embed collections of documents.", no_args_is_help=True)


@collections.command("list", cls=PlainCommand)
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
    right = {"documents", "chunks", "embedded"}
    table = list_table(("name", "documents", "chunks", "embedded", "model", "created"), right=right)
    for collection in listed.collections:
        created = collection.created_at.ToDatetime().isoformat(sep=" ", timespec="minutes")
        counts = (collection.document_count, collection.chunk_count, collection.embedded_chunk_count)
        model = cell(collection.embedding_model or "none")
        table.add_row(cell(collection.name), *map(str, counts), model, f"{created} UTC")
    show(table)


@collections.command("delete", cls=PlainCommand)
def delete_collection(
    name: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTION",
            help="Collection to delete, with its documents.",
            autocompletion=names_of("collections"),
        ),
    ],
    *,
    timeout: options.Timeout = 10.0,
    address: Address = "",
) -> None:
    """Delete a collection and its documents."""
    with reporting_errors():
        request = pb.DeleteCollectionRequest(name=name)
        call_context(address, timeout, lambda context: context.call(context.stub.DeleteCollection, request))
    note(f"{name} deleted")


@collections.command("reembed", cls=PlainCommand)
def reembed_collection(
    name: Annotated[
        str,
        typer.Argument(metavar="COLLECTION", help="Collection to embed again.", autocompletion=names_of("collections")),
    ],
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Alias of an embedding model; none for no embeddings.",
            autocompletion=names_of("models"),
        ),
    ],
    *,
    timeout: options.Timeout = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the collection as JSON.")] = False,
    address: Address = "",
) -> None:
    """Embed a collection again with another model."""
    with reporting_errors():
        request = pb.ReembedRequest(collection=name, embedding_model="" if model == NO_MODEL else model)
        reply = call_context(address, timeout, lambda context: context.call(context.stub.Reembed, request))
    if as_json:
        print_json(reply.collection)
        return
    count = reply.collection.chunk_count
    if model == NO_MODEL:
        note(f"{name} has no embeddings any more")
    else:
        note(f"{count_of(count, 'chunk')} of {name} wait for {model}: `pagantic collections list` counts them")


def verify(
    name: Annotated[
        str, typer.Argument(metavar="COLLECTION", help="Collection to verify.", autocompletion=names_of("collections"))
    ],
    *,
    embeddings: Annotated[
        int, typer.Option(metavar="N", min=-1, max=1000, help="Embeddings to compute again; 0 is 32, -1 none.")
    ] = 0,
    timeout: options.Timeout = 600.0,
    as_json: options.AsJson = False,
    address: Address = "",
) -> None:
    """Compare a collection with the data derived from its texts."""
    with reporting_errors():
        request = pb.VerifyRequest(collection=name, embedding_sample=embeddings)
        report = call_context(address, timeout, lambda context: context.call(context.stub.Verify, request))
    if as_json:
        print_json(report)
    else:
        for difference in report.differences:
            say(plain_text(difference))
        compared = ", ".join(
            (
                count_of(report.document_count, "document"),
                count_of(report.chunk_count, "chunk"),
                count_of(report.embedding_count, "embedding"),
            )
        )
        say(f"{name}: {compared} compared, {count_of(report.difference_count, 'difference')}")
    if report.difference_count:
        raise typer.Exit(EXIT_FAILED)


@dataclass(frozen=True, slots=True)
class ContextCalls:
    """Calls to the context service on behalf of the API key's tenant, or of the operator."""

    stub: pb_grpc.ContextServiceAsyncStub
    credentials: str
    timeout_s: float

    async def call(self, method: grpc.aio.UnaryUnaryMultiCallable[Any, ResultT], request: Any) -> ResultT:
        """Make a unary call."""
        return await call_unary("context", method, request, self.timeout_s, credentials=self.credentials)

    def call_stream(
        self, method: grpc.aio.StreamStreamMultiCallable[Any, ResultT], requests: AsyncIterator[Any]
    ) -> AsyncGenerator[ResultT, None]:
        """Make a call with a stream of requests whose total length is not limited."""
        return call_stream("context", method, requests, credentials=self.credentials)


def call_context(address: str, timeout_s: float, send: Callable[[ContextCalls], Awaitable[ResultT]]) -> ResultT:
    """Call the context service, or the orchestrator in front of it if there is an API key."""

    async def connect_and_send() -> ResultT:
        if not address and has_key(os.environ):
            target = find_target(os.environ.get("PAGANTIC_ADDRESS") or options.ORCHESTRATOR, os.environ)
            credentials = credentials_for(target, None, os.environ)
        else:
            target = find_target(address or options.CONTEXT, os.environ)
            credentials = operator_credentials("context", target)
        async with target.open(MAX_MESSAGE_BYTES) as channel:
            return await send(ContextCalls(pb_grpc.ContextServiceStub(channel), credentials, timeout_s))

    return asyncio.run(connect_and_send())
