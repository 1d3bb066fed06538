"""Assembles the API document, an OpenAPI 3.1 description of every path, from the operations. The module is pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from pydantic import TypeAdapter
from starlette.convertors import PathConvertor

from gateway.http.bodies import SCHEMAS
from gateway.http.document.messages import message_schemas
from gateway.http.operations import JSON, NATIVE, Access, Dialect, Operation, Parameter, Shape

_KEYS: list[dict[str, list[str]]] = [{"bearer": []}, {"apiKey": []}]
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_REQUEST_ID = {
    "x-request-id": {
        "description": "The id of the request, and of its execution.",
        "schema": {"type": "string"},
    }
}
# Names may contain slashes. Ids have the form that `pagantic_common.domain.ids` requires.
_NAME = {"type": "string", "minLength": 1}
_ID = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}
_FILE = {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
_DOOR = MappingProxyType(
    {
        403: "A page of this origin, or a caller with this key, may not do it.",
        408: "The body did not arrive in time.",
        413: "The request is too large.",
        421: "The header Host names another server.",
        500: "The system failed; its log says why.",
        503: "The system is overloaded, or a service is away: try again later.",
    }
)
_ORCHESTRATOR = MappingProxyType(
    {
        400: "The request is wrong; the message names the field.",
        401: "The API key is missing, unknown or expired.",
        404: "A model, execution or other thing that the request names does not exist.",
        409: "The state of things does not allow it, or the request id is taken by another request.",
        415: "The body has a content type other than JSON, or a content encoding, or a web page does not name JSON.",
        422: "The request is understood, and cannot be done as it is.",
        429: "A rate, a concurrency or a budget is used up.",
        499: "The execution was cancelled.",
        501: "The deployment cannot do it.",
        502: "A tool or a service failed.",
        504: "The time is up.",
        507: "The deployment has no space for a model.",
    }
)
_STATUSES = MappingProxyType(dict(sorted({**_DOOR, **_ORCHESTRATOR}.items())))
# Statuses whose responses state the time of a retry.
_RETRYABLE = (429, 503)
_ABOUT = (
    "The HTTP gateway: the APIs of OpenAI, Anthropic, Ollama, Cohere and Jina, and a native one, in front of the "
    "orchestrator. A key is needed where the gateway or the orchestrator asks for one."
)


def document_of(operations: Sequence[Operation], version: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the API document of the operations.

    If the gateway does not need a key, the document lists the key as optional, because the orchestrator may require it.
    """
    keys = _KEYS if needs_key else [*_KEYS, {}]
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, operations, keys)
    dialects = list(dict.fromkeys(operation.dialect for operation in operations))
    return {
        "openapi": "3.1.0",
        "info": {"title": "pagantic", "version": version, "description": _ABOUT},
        "tags": [{"name": dialect.name} for dialect in dialects],
        "paths": paths,
        "components": {
            "schemas": _component_schemas(operations, dialects),
            "responses": _failure_responses(dialects),
            "securitySchemes": _SCHEMES,
        },
    }


def _component_schemas(operations: Sequence[Operation], dialects: Sequence[Dialect]) -> dict[str, Any]:
    """Return the schemas of all shapes and of the shapes inside them, by their names."""
    shapes: list[Shape | None] = [dialect.error for dialect in dialects]
    for operation in operations:
        shapes += (operation.form, operation.answer, operation.events)
    every = dict.fromkeys(shape for shape in shapes if shape is not None)
    messages = [cast("Descriptor", shape.DESCRIPTOR) for shape in every if issubclass(shape, Message)]
    mode: Literal["validation"] = "validation"
    adapters = [(shape.__name__, mode, TypeAdapter[Any](shape)) for shape in every if not issubclass(shape, Message)]
    _, schemas = TypeAdapter.json_schemas(adapters, ref_template=SCHEMAS + "{model}")
    return {**schemas["$defs"], **message_schemas(messages)}


def _reference_to(shape: Shape) -> dict[str, Any]:
    """Return a reference to the schema of a shape."""
    name = shape.DESCRIPTOR.full_name if issubclass(shape, Message) else shape.__name__
    return {"$ref": SCHEMAS + name}


def _described(
    operation: Operation, operations: Sequence[Operation], keys: list[dict[str, list[str]]]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.dialect.name],
        "parameters": [*_path_parameters(operation), *map(_parameter, operation.parameters)],
        "responses": {"200": _answer(operation, operations), **_failures_of(operation)},
        "security": keys if operation.needs_key else [],
    }
    if operation.form is not None:
        described["requestBody"] = _body(operation, operation.form)
    elif operation.takes_file:
        described["requestBody"] = _FILE
    return described


def _path_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name, convertor in operation.route.param_convertors.items():
        schema = _NAME if isinstance(convertor, PathConvertor) else _ID
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.summary,
        "schema": parameter.schema,
    }
    if parameter.style:
        described["style"] = parameter.style
    return described


def _body(operation: Operation, form: Shape) -> dict[str, Any]:
    schema = _reference_to(form)
    if operation.required:
        schema = {"allOf": [schema, {"required": list(operation.required)}]}
    return {"required": not operation.may_be_empty, "content": {JSON: {"schema": schema}}}


def _answer(operation: Operation, operations: Sequence[Operation]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is None:
        content[operation.text_type] = {"schema": {"type": "string"}}
    else:
        content[JSON] = {"schema": _reference_to(operation.answer)}
    if operation.events is not None:
        kind = operation.dialect.stream_type.partition(";")[0]
        # OpenAPI 3.1 cannot describe the parts of a stream. `itemSchema` of version 3.2 has the same meaning.
        content[kind] = {"schema": {"type": "string"}, "x-itemSchema": _reference_to(operation.events)}
    answer: dict[str, Any] = {"description": "The answer.", "content": content}
    if operation.needs_key:
        answer["headers"] = _REQUEST_ID
    if operation.makes:
        answer["links"] = dict(_links(operation, operations))
    return answer


def _links(operation: Operation, operations: Sequence[Operation]) -> Iterator[tuple[str, Any]]:
    """Yield the operations that accept the id of an answer, each with the location of that id."""
    place = "request_id" if operation.dialect is NATIVE else "id"
    for other in operations:
        if operation.makes in other.route.param_convertors:
            parameters = {operation.makes: f"$response.body#/{place}"}
            yield other.name, {"operationId": other.name, "parameters": parameters}


def _failures_of(operation: Operation) -> dict[str, Any]:
    """Return the error responses of an operation by status, as references except for probes."""
    if operation.access is Access.PROBE:
        return {"503": {"description": "Not now.", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    statuses = _STATUSES if operation.needs_key else _DOOR
    name = operation.dialect.error.__name__
    return {str(status): {"$ref": f"#/components/responses/{name}{status}"} for status in statuses}


def _failure_responses(dialects: Sequence[Dialect]) -> dict[str, Any]:
    """Return the error responses of every API as components of the document."""
    responses: dict[str, Any] = {}
    for shape in dict.fromkeys(dialect.error for dialect in dialects):
        for status, summary in _STATUSES.items():
            responses[f"{shape.__name__}{status}"] = _failure_response(shape, status, summary)
    return responses


def _failure_response(shape: type, status: int, summary: str) -> dict[str, Any]:
    described: dict[str, Any] = {"description": summary, "content": {JSON: {"schema": _reference_to(shape)}}}
    if status in _RETRYABLE:
        delay = {"description": "After how many seconds to try again.", "schema": {"type": "integer", "minimum": 1}}
        described["headers"] = {"retry-after": delay}
    return described
