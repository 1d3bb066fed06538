"""Operations of HTTP APIs, called over real sockets: an API of this test, and servers that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic_common.domain.errors import InvalidRequest
from services.tools.adapters.http_guard import Bounds, GuardedTransport, RequestRefused, guarded_client
from services.tools.adapters.openapi.opening import ApiLimits
from services.tools.core.allowlists import HostAllowlist
from tests.integration.tools.mcp_service import call, mcp_service, said, tools
from tests.integration.tools.test_mcp_addresses import answering

FAILED = error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED
UNAVAILABLE = error_pb2.ERROR_CODE_TOOL_UNAVAILABLE

TEXT = {"type": "string"}
PET = {
    "type": "object",
    "required": ["id", "name"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "name": TEXT,
        "tag": {"type": "string", "nullable": True},
    },
}
DOCUMENT = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "components": {"schemas": {"Pet": PET, "Tree": {"properties": {"left": {"$ref": "#/components/schemas/Tree"}}}}},
    "paths": {
        "/pets": {
            "get": {
                "operationId": "listPets",
                "summary": "Lists pets.",
                "parameters": [
                    {"name": "tags", "in": "query", "schema": {"type": "array", "items": TEXT}},
                    {"name": "where", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                    {"name": "X-Trace", "in": "header", "schema": TEXT},
                    {"name": "key", "in": "query", "required": True, "schema": TEXT},
                ],
                "responses": {"200": {"description": "pets"}},
            },
            "post": {
                "operationId": "createPet",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
                "responses": {"201": {"description": "the pet"}},
            },
        },
        "/pets/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": TEXT}],
            "get": {"operationId": "getPet", "responses": {"200": {"description": "the pet"}}},
            "delete": {"operationId": "deletePet", "responses": {"204": {"description": "done"}}},
        },
        "/trees": {
            "post": {
                "operationId": "createTree",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Tree"}}}},
                "responses": {"201": {"description": "the tree"}},
            }
        },
    },
}


async def echo(request: Request) -> Response:
    """Return what arrived."""
    body = await request.body()
    return JSONResponse(
        {
            "method": request.method,
            "path": request.scope["raw_path"].decode(),
            "query": request.url.query,
            "headers": dict(request.headers),
            "body": json.loads(body) if body else None,
        }
    )


async def pet(request: Request) -> Response:
    match request.method, request.path_params["id"]:
        case "DELETE", _:
            return Response(status_code=204)
        case _, "missing":
            return JSONResponse({"reason": "no such pet"}, 404)
        case _, "text":
            return PlainTextResponse("grün".encode("latin-1"), media_type="text/plain; charset=iso-8859-1")
        case _, "image":
            return Response(b"\x89PNG", media_type="image/png")
    return await echo(request)


@asynccontextmanager
async def serving(*routes):
    """Run an API; yields its URL."""
    config = uvicorn.Config(Starlette(routes=routes), port=0, log_config=None, ws="none", lifespan="off")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def api():
    """Run the API of the pets; yields its URL."""
    pets = Route("/v1/pets", echo, methods=["GET", "POST"])
    async with serving(pets, Route("/v1/pets/{id:path}", pet, methods=["GET", "DELETE"])) as url:
        yield f"{url}/v1"


@asynccontextmanager
async def service(folder, url, document=None, keys=None, **settings):
    """Run the tools service with one API; yields a stub."""
    (folder / "pets.json").write_text(json.dumps(document or DOCUMENT))
    entry = {"document": "pets.json", "url": url, "query": {"key": "${KEY:-k}"}, **(keys or {})}
    file = folder / "apis.json"
    file.write_text(json.dumps({"apis": {"pets": entry}}))
    async with mcp_service(folder, openapi=file, **settings) as stub:
        yield stub


async def test_operations_are_listed_with_what_they_do(tmp_path):
    async with service(tmp_path, "http://127.0.0.1:1") as stub:
        listed = {name: tool.definition for name, tool in (await tools(stub)).items() if name.startswith("pets_")}
    assert set(listed) == {"pets_listPets", "pets_createPet", "pets_getPet", "pets_deletePet"}
    assert listed["pets_listPets"].description == "Lists pets."
    assert {name: (tool.safety, tool.idempotent) for name, tool in listed.items()} == {
        "pets_listPets": (message_pb2.TOOL_SAFETY_READ, True),
        "pets_getPet": (message_pb2.TOOL_SAFETY_READ, True),
        "pets_createPet": (message_pb2.TOOL_SAFETY_EXTERNAL, False),
        "pets_deletePet": (message_pb2.TOOL_SAFETY_EXTERNAL, True),
    }
    assert set(json.loads(listed["pets_listPets"].parameters_json)["properties"]) == {"tags", "where", "X-Trace"}


async def test_arguments_arrive_in_their_places_beside_what_the_deployment_sends(tmp_path, monkeypatch):
    monkeypatch.setenv("KEY", "s3cret&")
    headers = {"headers": {"Authorization": "Bearer ${KEY}"}}
    async with api() as url, service(tmp_path, url, keys=headers) as stub:
        seen = json.loads(await said(stub, "pets_listPets", tags=["a b", "c&d"], where={"age": 3}, **{"X-Trace": "t1"}))
        assert seen["query"] == "key=s3cret%26&tags=a%20b&tags=c%26d&where%5Bage%5D=3"
        assert seen["headers"]["x-trace"] == "t1"
        assert seen["headers"]["authorization"] == "Bearer s3cret&"
        seen = json.loads(await said(stub, "pets_createPet", body={"name": "Ä", "tag": None}))
        assert seen["body"] == {"name": "Ä", "tag": None}
        assert seen["headers"]["content-type"] == "application/json"
        seen = json.loads(await said(stub, "pets_getPet", id="a/../b"))
        assert seen["path"] == "/v1/pets/a%2F..%2Fb"
        refused = await call(stub, "pets_getPet", id="..")
        assert "a segment '.' or '..'" in refused.error.message


async def test_arguments_that_break_the_schema_are_not_sent(tmp_path):
    async with service(tmp_path, "http://127.0.0.1:1") as stub:
        refused = await call(stub, "pets_createPet", body={"tag": "x"})
        assert refused.error.code == error_pb2.ERROR_CODE_TOOL_INVALID_ARGUMENTS
        assert "'body.name' is missing" in refused.error.message


async def test_answers_become_text_and_failures_have_the_status(tmp_path):
    async with api() as url, service(tmp_path, url) as stub:
        assert await said(stub, "pets_deletePet", id="1") == "the api answered 204 without content"
        assert await said(stub, "pets_getPet", id="text") == "grün"
        missing = await call(stub, "pets_getPet", id="missing")
        assert missing.error.message.endswith('the api answered 404 Not Found: {"reason":"no such pet"}')
        assert missing.attempts == 1
        image = await call(stub, "pets_getPet", id="image")
        assert "its answer is 'image/png' of 4 bytes" in image.error.message
        calls = (said(stub, "pets_getPet", id=str(number)) for number in range(200))
        paths = [json.loads(text)["path"] for text in await asyncio.gather(*calls)]
        assert paths == [f"/v1/pets/{number}" for number in range(200)]


async def test_an_api_that_cannot_be_reached_is_unavailable(tmp_path):
    async with service(tmp_path, "http://127.0.0.1:1", max_retries=1) as stub:
        lost = await call(stub, "pets_getPet", id="1")
        assert (lost.error.code, lost.attempts) == (UNAVAILABLE, 2)
        lost = await call(stub, "pets_createPet", body={"name": "x"})
        assert (lost.error.code, lost.attempts) == (UNAVAILABLE, 1)


def head(*lines):
    return "".join(f"{line}\r\n" for line in ("HTTP/1.1 200 OK", "content-type: application/json", *lines, "")).encode()


ENDLESS = head("transfer-encoding: chunked") + b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n"
BOMB = gzip.compress(b" " * 1_000_000)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ENDLESS, "more than 4096 bytes"),
        (head("content-encoding: gzip", f"content-length: {len(BOMB)}") + BOMB, "compresses its answers"),
        (head("content-length: 1") + b"{", "should be JSON, and is not"),
        (head("content-length: 10") + b"{", "gave no answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "application/octet-stream"),
        (b"nonsense\r\n\r\n", "gave no answer"),
        (b"HTTP/1.1 503 \r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\nbusy", "answered 503: busy"),
    ],
)
async def test_an_answer_that_cannot_be_used_fails_its_call_with_the_reason(tmp_path, answer, reason):
    limits = {"api": ApiLimits(max_message_bytes=4096)}
    async with (
        answering(answer) as (port, seen),
        service(tmp_path, f"http://127.0.0.1:{port}", limits=limits, max_retries=0) as stub,
    ):
        failed = await call(stub, "pets_createPet", body={"name": "x"})
        assert reason in failed.error.message
        assert b"accept-encoding: identity" in seen[0].lower()


async def test_answers_that_are_refused_give_their_connections_back():
    compressed = head("content-encoding: gzip", "content-length: 10") + b"x"
    async with answering(compressed) as (port, seen):
        hosts = HostAllowlist().with_inner_hosts(("127.0.0.1", port))
        transport = GuardedTransport(Bounds(hosts, "HOSTS", 4096, "BYTES"), max_connections=1)
        async with guarded_client(transport, {}) as client, asyncio.timeout(20):
            for _ in range(3):
                with pytest.raises(RequestRefused):
                    await client.get(f"http://127.0.0.1:{port}/")
    assert len(seen) == 3


async def test_a_redirect_is_not_followed(tmp_path):
    async with answering(head("content-length: 2") + b"{}") as (other, seen):
        redirect = f"HTTP/1.1 307 Temporary\r\nlocation: http://127.0.0.1:{other}/\r\ncontent-length: 0\r\n\r\n"
        async with answering(redirect.encode()) as (port, _), service(tmp_path, f"http://127.0.0.1:{port}") as stub:
            failed = await call(stub, "pets_getPet", id="1")
            assert "redirects are not followed" in failed.error.message
            assert failed.error.code == FAILED
        assert not seen


async def test_an_answer_that_does_not_end_is_given_up_in_time(tmp_path):
    keys = {"timeoutSeconds": 0.2}
    async with slow() as port, service(tmp_path, f"http://127.0.0.1:{port}", keys=keys) as stub:
        failed = await call(stub, "pets_createPet", body={"name": "x"})
        assert failed.error.code == error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN


@asynccontextmanager
async def slow():
    """Send a byte of an answer now and then; yields the port."""

    async def answer(_, writer):
        writer.write(head("transfer-encoding: chunked"))
        try:
            with suppress(ConnectionError):
                while True:
                    writer.write(b"1\r\n \r\n")
                    await writer.drain()
                    await asyncio.sleep(0.02)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("document", "keys", "reason"),
    [
        ({"swagger": "2.0"}, {}, "it is Swagger 2.0: convert it"),
        ({**DOCUMENT, "openapi": "4.0.0"}, {}, "'openapi' is '4.0.0'"),
        (DOCUMENT, {"operations": ["nope*"]}, "no operation that 'nope\\*' matches"),
        (DOCUMENT, {"operations": ["createTree"]}, "createTree: schema '#/components/schemas/Tree' contains itself"),
        (DOCUMENT, {"document": "other.yaml"}, "cannot be read: No such file"),
        (DOCUMENT, {"url": "http://a/?x=1"}, "no query"),
        (DOCUMENT, {"headers": {"a": "b\r\nc: d"}}, "printable ASCII"),
    ],
)
async def test_a_document_without_a_usable_operation_keeps_the_service_from_starting(tmp_path, document, keys, reason):
    with pytest.raises(InvalidRequest, match=reason) as raised:
        async with service(tmp_path, "http://127.0.0.1:1", document, keys):
            pass
    assert "OPENAPI: " in str(raised.value)


async def test_limits_leave_tools_out(tmp_path):
    async with service(tmp_path, "http://127.0.0.1:1", openapi_max_tools=2) as stub:
        assert sum(name.startswith("pets_") for name in await tools(stub)) == 2
