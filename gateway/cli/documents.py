"""Commands of the context service: store documents, list and delete collections.

With an API key they go through the orchestrator, to the collections of the key's tenant; without one they call the
context service itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer

from gateway.cli import options
from gateway.cli.output import UsageError, note, print_json, reporting_errors, say, show
from pagantic.context.v1 import collection_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic_common.client.credentials import credentials_for, has_key
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.tables import cell, list_table
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import call_unary

MAX_BATCH_BYTES = MAX_MESSAGE_BYTES - 64 * 1024
MAX_DOOR_BATCH_BYTES = MAX_BATCH_BYTES // 2  # the orchestrator takes smaller messages
MAX_BATCH_DOCUMENTS = 1000  # the service's default limit for one call

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


def ingest(
    collection: Annotated[str, typer.Argument(metavar="COLLECTION", help="Collection; made if it does not exist.")],
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Text files, and folders of them; a path names its document."),
    ],
    *,
    timeout: options.Timeout = options.TIMEOUT_S,
    as_json: options.AsJson = False,
    address: Address = "",
) -> None:
    """Store text files, so that requests can retrieve from them."""
    with reporting_errors():
        documents, skipped = _read_documents(paths)
        if not documents:
            raise UsageError(f"there is no text to store: {count_of(skipped, 'file')} skipped, not UTF-8 text")
        total = _call(address, timeout, lambda context: _ingest_batches(context, collection, documents))
    if skipped:
        note(f"{count_of(skipped, 'file')} skipped: empty, or not UTF-8 text")
    if as_json:
        print_json(total)
        return
    kept = total.collection
    say(
        f"{kept.name}: {total.added} added, {total.replaced} replaced, {total.unchanged} unchanged; "
        f"now {count_of(kept.document_count, 'document')}, {count_of(kept.chunk_count, 'chunk')}"
    )


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
        listed = _call(address, timeout, lambda context: context.call(context.stub.ListCollections, request))
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
        _call(address, timeout, lambda context: context.call(context.stub.DeleteCollection, request))
    note(f"{name} deleted")


@dataclass(frozen=True, slots=True)
class _Context:
    """The context service, called in the name of the key's tenant."""

    stub: pb_grpc.ContextServiceAsyncStub
    credentials: str
    timeout_s: float
    max_batch_bytes: int

    async def call(self, method: grpc.aio.UnaryUnaryMultiCallable[Any, ResultT], request: Any) -> ResultT:
        return await call_unary("context", method, request, self.timeout_s, credentials=self.credentials)


async def _ingest_batches(
    context: _Context, collection: str, documents: Sequence[collection_pb2.Document]
) -> pb.IngestResponse:
    total = pb.IngestResponse()
    for batch in _batches(documents, context.max_batch_bytes):
        request = pb.IngestRequest(collection=collection, documents=batch)
        stored = await context.call(context.stub.Ingest, request)
        total.added += stored.added
        total.replaced += stored.replaced
        total.unchanged += stored.unchanged
        total.collection.CopyFrom(stored.collection)
    return total


def _read_documents(paths: Sequence[Path]) -> tuple[list[collection_pb2.Document], int]:
    """Return the documents, and the number of files in folders without UTF-8 text; raises UsageError."""
    documents: list[collection_pb2.Document] = []
    skipped = 0
    for path in paths:
        if not path.is_dir():
            documents.append(collection_pb2.Document(source=path.as_posix(), content=options.read_file(path)))
            continue
        for file in _files_in(path):
            text = _text_of(file)
            if text.strip():
                documents.append(collection_pb2.Document(source=file.as_posix(), content=text))
            else:
                skipped += 1
    return documents, skipped


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield a folder's files, those of its folders too, in the order of their names; hidden ones are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (Path(parent) / name).is_file():
                yield Path(parent) / name


def _text_of(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    if "\0" in text:
        return ""
    return text


def _batches(documents: Sequence[collection_pb2.Document], max_bytes: int) -> list[list[collection_pb2.Document]]:
    batches: list[list[collection_pb2.Document]] = [[]]
    size = 0
    for document in documents:
        bytes_more = document.ByteSize()
        if bytes_more > max_bytes:
            raise UsageError(f"{document.source!r} has {bytes_more} bytes: at most {max_bytes} are taken")
        if batches[-1] and (size + bytes_more > max_bytes or len(batches[-1]) == MAX_BATCH_DOCUMENTS):
            batches.append([])
            size = 0
        batches[-1].append(document)
        size += bytes_more
    return batches


def _call(address: str, timeout_s: float, send: Callable[[_Context], Awaitable[ResultT]]) -> ResultT:
    async def connect_and_send() -> ResultT:
        target, credentials, max_batch_bytes = find_target(address or options.CONTEXT, os.environ), "", MAX_BATCH_BYTES
        if not address and has_key(os.environ):
            target = find_target(os.environ.get("PAGANTIC_ADDRESS") or options.ORCHESTRATOR, os.environ)
            credentials, max_batch_bytes = credentials_for(target, None, os.environ), MAX_DOOR_BATCH_BYTES
        async with target.open(MAX_MESSAGE_BYTES) as channel:
            return await send(_Context(pb_grpc.ContextServiceStub(channel), credentials, timeout_s, max_batch_bytes))

    return asyncio.run(connect_and_send())
