"""Offers collections of documents as resources: their contents, and their chunks for a query."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mcp_types import Resource, ResourceTemplate, TextResourceContents

from pagantic.common.v1 import chunk_pb2
from pagantic.context.v1 import collection_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.client.descriptions import count_of
from pagantic_common.domain.errors import InvalidRequest, NotFound
from pagantic_common.domain.text.json_text import dump_json

PREFIX = "pagantic://collections/"
TEMPLATE = f"{PREFIX}{{name}}{{?query}}"
MAX_CHUNKS = 20
MAX_BYTES = 256 * 1024
MAX_RESOURCES = 1000
_JSON, _TEXT = "application/json", "text/plain"


async def list_collections(client: AsyncClient) -> list[Resource]:
    """Return the caller's collections."""
    return [_resource_of(collection) for collection in (await client.list_collections())[:MAX_RESOURCES]]


def list_templates() -> list[ResourceTemplate]:
    """Return the template for the URIs of chunks."""
    template = ResourceTemplate(
        name="chunks",
        uri_template=TEMPLATE,
        description=f"The chunks of a collection that fit a query best, at most {MAX_CHUNKS}.",
        mime_type=_TEXT,
    )
    return [template]


async def read(client: AsyncClient, uri: str) -> TextResourceContents:
    """Return the resource at a URI. Raises NotFound for an unknown collection, or InvalidRequest for an invalid URI."""
    name, query = _parse(uri)
    if query:
        chunks = await client.retrieve(name, query, max_chunks=MAX_CHUNKS)
        return TextResourceContents(uri=uri, mime_type=_TEXT, text=_lay_out(chunks))
    for collection in await client.list_collections():
        if collection.name == name:
            return TextResourceContents(uri=uri, mime_type=_JSON, text=_describe(collection))
    raise NotFound(f"no collection is named {name!r}: resources/list names those there are")


def _parse(uri: str) -> tuple[str, str]:
    """Return the name of the collection, and the query or an empty string."""
    try:
        parts = urlsplit(uri)
        queries = parse_qs(parts.query, strict_parsing=bool(parts.query), max_num_fields=4).get("query", [""])
    except ValueError:
        raise _refuse(uri) from None
    name = unquote(parts.path.removeprefix("/"))
    if (parts.scheme, parts.netloc) != ("pagantic", "collections") or not name or "/" in name:
        raise _refuse(uri)
    return name, queries[0]


def _refuse(uri: str) -> InvalidRequest:
    return InvalidRequest(f"{uri[:200]!r} is no resource of this server: use {PREFIX}NAME or {PREFIX}NAME?query=TEXT")


def _resource_of(collection: collection_pb2.Collection) -> Resource:
    return Resource(
        uri=f"{PREFIX}{quote(collection.name)}",
        name=collection.name,
        description=(
            f"Collection of {count_of(collection.document_count, 'document')} in "
            f"{count_of(collection.chunk_count, 'chunk')}; ?query=TEXT reads those that fit."
        ),
        mime_type=_JSON,
    )


def _describe(collection: collection_pb2.Collection) -> str:
    return dump_json(
        {
            "name": collection.name,
            "document_count": collection.document_count,
            "chunk_count": collection.chunk_count,
            "created_at": collection.created_at.ToJsonString(),
        }
    )


def _lay_out(chunks: Iterable[chunk_pb2.Chunk]) -> str:
    """Return the chunks that fit, each with its source."""
    parts: list[str] = []
    remaining_bytes = MAX_BYTES
    for number, chunk in enumerate(chunks, start=1):
        part = f"[{number}] ({chunk.source}): {chunk.content}"
        remaining_bytes -= len(part.encode()) + 2
        if remaining_bytes < 0:
            break
        parts.append(part)
    return "\n\n".join(parts)
