"""Operations whose bodies are forms, called over real sockets: a server reads what arrives with a parser of its own."""

from __future__ import annotations

import json

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pagantic.common.v1 import error_pb2
from tests.integration.tools.mcp_service import call, said, tools
from tests.integration.tools.test_openapi import service, serving

TEXT = {"type": "string"}
ADDRESS = {"type": "object", "properties": {"street": TEXT, "city": TEXT}}
CUSTOMER = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": TEXT,
        "tags": {"type": "array", "items": TEXT},
        "address": ADDRESS,
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "items": {"type": "array", "items": ADDRESS},
    },
}
ENCODING = {name: {"style": "deepObject", "explode": True} for name in ("metadata", "items")}
REPORT = {
    "type": "object",
    "required": ["file"],
    "properties": {"title": TEXT, "address": ADDRESS, "file": {"type": "string", "format": "binary"}},
}


def posting(name, kind, entry):
    body = {"required": True, "content": {kind: entry}}
    return {"post": {"operationId": name, "requestBody": body, "responses": {"200": {"description": "done"}}}}


def in_path(name, style):
    return {"name": name, "in": "path", "required": True, "style": style, "schema": {"type": "array", "items": TEXT}}


DOCUMENT = {
    "openapi": "3.0.3",
    "info": {"title": "Forms", "version": "1"},
    "paths": {
        "/customers": posting(
            "createCustomer", "application/x-www-form-urlencoded", {"schema": CUSTOMER, "encoding": ENCODING}
        ),
        "/reports": posting(
            "sendReport", "multipart/form-data", {"schema": REPORT, "encoding": {"file": {"contentType": "text/csv"}}}
        ),
        "/colors/{colors}/{parts}": {
            "parameters": [in_path("colors", "matrix"), in_path("parts", "label")],
            "get": {"operationId": "getColors", "responses": {"200": {"description": "colors"}}},
        },
    },
}


async def read_form(request: Request) -> Response:
    """Return the fields that arrived, each with the file name and the type of a file."""
    fields: list[list[str | None]] = []
    async with request.form() as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                fields.append([name, (await value.read()).decode(), value.filename, value.content_type])
            else:
                fields.append([name, value])
    return JSONResponse({"type": request.headers["content-type"].partition(";")[0], "fields": fields})


async def show_path(request: Request) -> Response:
    return JSONResponse(request.scope["raw_path"].decode())


ROUTES = (
    Route("/customers", read_form, methods=["POST"]),
    Route("/reports", read_form, methods=["POST"]),
    Route("/colors/{rest:path}", show_path),
)


async def test_encoded_forms_arrive(tmp_path):
    async with serving(*ROUTES) as url, service(tmp_path, url, DOCUMENT) as stub:
        body = {
            "name": "Änne & Söhne=1",
            "tags": ["a,b", "c d"],
            "address": {"street": "1+1"},
            "metadata": {"key": "&name=x"},
        }
        seen = json.loads(await said(stub, "pets_createCustomer", body=body))
    assert seen == {
        "type": "application/x-www-form-urlencoded",
        "fields": [
            ["name", "Änne & Söhne=1"],
            ["tags", "a,b"],
            ["tags", "c d"],
            ["address", '{"street":"1+1"}'],
            ["metadata[key]", "&name=x"],
        ],
    }


async def test_multipart_forms_arrive(tmp_path):
    async with serving(*ROUTES) as url, service(tmp_path, url, DOCUMENT) as stub:
        body = {"title": "grün", "address": {"city": "Ä"}, "file": "a,b\r\n--x--\r\n1,2\n"}
        seen = json.loads(await said(stub, "pets_sendReport", body=body))
    assert seen == {
        "type": "multipart/form-data",
        "fields": [
            ["title", "grün"],
            ["address", '{"city":"Ä"}'],
            ["file", "a,b\r\n--x--\r\n1,2\n", "file", "text/csv"],
        ],
    }


async def test_paths_arrive_in_their_styles(tmp_path):
    async with serving(*ROUTES) as url, service(tmp_path, url, DOCUMENT) as stub:
        seen = json.loads(await said(stub, "pets_getColors", colors=["a;b", "c"], parts=["d.e", "f/g"]))
    assert seen == "/colors/;colors=a%3Bb,c/.d%2Ee,f%2Fg"


async def test_properties_that_a_form_cannot_hold_are_not_taken(tmp_path):
    async with service(tmp_path, "http://127.0.0.1:1", DOCUMENT) as stub:
        definition = (await tools(stub))["pets_createCustomer"].definition
        assert "items" not in json.loads(definition.parameters_json)["properties"]["body"]["properties"]
        refused = await call(stub, "pets_createCustomer", body={"name": "x", "items": []})
    assert refused.error.code == error_pb2.ERROR_CODE_TOOL_INVALID_ARGUMENTS
