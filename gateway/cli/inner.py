"""Commands that talk to inner services, because the orchestrator's contract has no rpc for what they do.

Storing documents and listing tools is care of the system, not work for a model, so it is no SystemRequest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gateway.cli import options
from gateway.cli.output import UsageError, print_json, reporting_errors
from pagantic.common.v1 import message_pb2
from pagantic.context.v1 import context_service_pb2, context_service_pb2_grpc
from pagantic.tools.v1 import tools_service_pb2, tools_service_pb2_grpc
from pagantic_common.client.tables import wide_console
from pagantic_common.rpc.call import call_unary
from pagantic_common.rpc.channel import open_channel

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
ENVELOPE_BYTES = 64 * 1024


def ingest(
    collection: Annotated[str, typer.Argument(help="collection; made when it is not there")],
    files: Annotated[list[Path], typer.Argument(help="text files; each path is the source of its document")],
    *,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT_S,
    as_json: options.AsJson = False,
    address: Annotated[
        str, typer.Option(envvar="PAGANTIC_CONTEXT_ADDRESS", help="host:port of the context service")
    ] = "127.0.0.1:50054",
) -> None:
    """Store files so that requests can retrieve from them. Talks to the context service itself."""
    with reporting_errors():
        documents = [
            context_service_pb2.Document(source=path.as_posix(), content=options.read_file(path)) for path in files
        ]
        total = context_service_pb2.IngestResponse()
        for batch in _batches(documents):
            request = context_service_pb2.IngestRequest(collection=collection, documents=batch)
            stored = asyncio.run(_ingest(address, request, timeout))
            total.added += stored.added
            total.replaced += stored.replaced
            total.unchanged += stored.unchanged
            total.collection.CopyFrom(stored.collection)
        if as_json:
            print_json(total)
        else:
            kept = total.collection
            typer.echo(
                f"{kept.name}: {total.added} added, {total.replaced} replaced, {total.unchanged} unchanged; "
                f"{kept.document_count} documents, {kept.chunk_count} chunks"
            )


def tools(
    *,
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: Annotated[
        str, typer.Option(envvar="PAGANTIC_TOOLS_ADDRESS", help="host:port of the tools service")
    ] = "127.0.0.1:50056",
) -> None:
    """List the tools that a model may call. Talks to the tools service itself."""
    with reporting_errors():
        listed = asyncio.run(_list_tools(address, timeout))
        if as_json:
            print_json(listed)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("name", "safety", "available", "description"):
            table.add_column(column, overflow="fold")
        for tool in listed.tools:
            definition = tool.definition
            safety = message_pb2.ToolSafety.Name(definition.safety).removeprefix("TOOL_SAFETY_").lower()
            available = "yes" if tool.available else f"no: {tool.unavailable_reason}"
            table.add_row(*map(escape, (definition.name, safety, available, definition.description)))
        wide_console().print(table)


def _batches(documents: Sequence[context_service_pb2.Document]) -> list[list[context_service_pb2.Document]]:
    batches: list[list[context_service_pb2.Document]] = [[]]
    size = 0
    for document in documents:
        bytes_more = document.ByteSize()
        if bytes_more > MAX_MESSAGE_BYTES - ENVELOPE_BYTES:
            raise UsageError(
                f"{document.source!r} has {bytes_more} bytes: at most {MAX_MESSAGE_BYTES - ENVELOPE_BYTES}"
            )
        if batches[-1] and size + bytes_more > MAX_MESSAGE_BYTES - ENVELOPE_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(document)
        size += bytes_more
    return batches


async def _ingest(
    address: str, request: context_service_pb2.IngestRequest, timeout_s: float
) -> context_service_pb2.IngestResponse:
    async with open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        stub: context_service_pb2_grpc.ContextServiceAsyncStub = context_service_pb2_grpc.ContextServiceStub(channel)
        return await call_unary("context", stub.Ingest, request, timeout_s)


async def _list_tools(address: str, timeout_s: float) -> tools_service_pb2.ListToolsResponse:
    async with open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        stub: tools_service_pb2_grpc.ToolServiceAsyncStub = tools_service_pb2_grpc.ToolServiceStub(channel)
        return await call_unary("tools", stub.ListTools, tools_service_pb2.ListToolsRequest(), timeout_s)
