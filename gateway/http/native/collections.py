"""Collections over HTTP: create, list, search and delete collections, and add files as documents."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import Done, apart, read_message, read_object
from gateway.http.native.executions import plain
from gateway.http.operations import NATIVE, Operation, Parameter
from gateway.http.streams.running import Answer
from gateway.web.bodies import Upload
from pagantic.context.v1 import collection_pb2, file_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest

MAX_SOURCE_CHARS = 1024
_NO_FILE_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded")


def collection_operations() -> list[Operation]:
    """Return the operations of collections."""
    collection = "/v1/collections/{collection}"
    source = Parameter("source", {"type": "string", "minLength": 1}, "Source of the document: the file's name.")
    return [
        Operation(NATIVE, "GET /v1/collections", _list, "listCollections", answer=pb.ListCollectionsResponse),
        Operation(
            NATIVE,
            "POST /v1/collections",
            _create,
            "createCollection",
            pb.CreateCollectionRequest,
            collection_pb2.Collection,
        ),
        Operation(NATIVE, f"DELETE {collection}", _delete, "deleteCollection", answer=Done),
        Operation(
            NATIVE,
            f"POST {collection}/files",
            _ingest,
            "ingestFile",
            answer=file_pb2.FileResult,
            parameters=(source,),
            takes_file=True,
        ),
        Operation(
            NATIVE, f"POST {collection}/search", _search, "searchCollection", pb.RetrieveRequest, pb.RetrieveResponse
        ),
    ]


async def _list(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
    """List collections by name."""
    return JSONResponse({"collections": [plain(collection) for collection in await client.list_collections()]})


async def _create(client: AsyncClient, _request: Request, body: bytes) -> Answer:
    """Make an empty collection."""
    create_request = await apart(body, read_message, read_object(body), pb.CreateCollectionRequest)
    return JSONResponse(plain(await client.create_collection(create_request)))


async def _delete(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Delete a collection with its documents."""
    await client.delete_collection(request.path_params["collection"])
    return JSONResponse({})


async def _search(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Find the chunks that fit a query best."""
    search_request = await apart(body, read_message, read_object(body), pb.RetrieveRequest)
    name = request.path_params["collection"]
    if search_request.policy.collection not in ("", name):
        raise InvalidRequest("policy.collection is not that of the path: leave it out of the body")
    search_request.policy.collection = name
    return JSONResponse(plain(await client.search(search_request)))


async def _ingest(client: AsyncClient, request: Request, upload: Upload) -> Answer:
    """Store a file as a document. If the file cannot be read, the answer contains the error."""
    source = request.query_params.get("source", "")
    try:
        if not source or len(source) > MAX_SOURCE_CHARS:
            raise InvalidRequest(f"source is missing or too long: name the file by 1 to {MAX_SOURCE_CHARS} characters")
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type in _NO_FILE_TYPES:
            media_type = ""
        name = request.path_params["collection"]
        stored = await client.ingest_content(name, source, upload.parts(), media_type=media_type)
    finally:
        await upload.discard()
    return JSONResponse(plain(stored))
