"""Assembles the document: an OpenAPI 3.1 description of every path, from the paths' own descriptions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from starlette.convertors import PathConvertor

from gateway.http.document.failures import error_shape_of, failure_responses, failures_of
from gateway.http.document.operations import (
    JSON,
    JSON_LINES,
    SENT_EVENTS,
    Access,
    DescribedRoute,
    Operation,
    Parameter,
    Shape,
    Tag,
)
from gateway.http.document.schemas import component_schemas, reference_to

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
# Names may have slashes; ids have the form that `pagantic_common.domain.ids` asks for.
_NAME = {"type": "string", "minLength": 1}
_ID = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}
_FILE = {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
_ABOUT = (
    "The HTTP gateway: the APIs of OpenAI, Anthropic, Ollama, Cohere and Jina, and a native one, in front of the "
    "orchestrator. A key is needed where the gateway or the orchestrator asks for one."
)


def document_of(routes: Sequence[DescribedRoute], version: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the document of these paths; even if the gateway needs no key, the orchestrator may require a key."""
    keys = _KEYS if needs_key else [*_KEYS, {}]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, routes, keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pagantic", "version": version, "description": _ABOUT},
        "tags": [{"name": tag} for tag in Tag],
        "paths": paths,
        "components": {
            "schemas": component_schemas(_shapes_of(route.operation for route in routes)),
            "responses": failure_responses(),
            "securitySchemes": _SCHEMES,
        },
    }


def _shapes_of(operations: Iterable[Operation]) -> Iterator[Shape]:
    """Yield the shapes that operations name, and the shapes of the errors of every API."""
    for operation in operations:
        yield from filter(None, (operation.form, operation.answer, operation.events))
    for tag in Tag:
        yield error_shape_of(tag)


def _operation(
    route: DescribedRoute, routes: Sequence[DescribedRoute], keys: list[dict[str, list[str]]]
) -> dict[str, Any]:
    operation = route.operation
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(route), *map(_parameter, operation.parameters)],
        "responses": {"200": _answer(operation, routes), **failures_of(operation), **_own_failures(operation)},
        "security": keys if operation.access is Access.KEY else [],
    }
    if operation.form is not None:
        described["requestBody"] = _body(operation, operation.form)
    elif operation.takes_file:
        described["requestBody"] = _FILE
    return described


def _path_parameters(route: DescribedRoute) -> Iterator[dict[str, Any]]:
    for name, convertor in route.route.param_convertors.items():
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
    schema = reference_to(form)
    if operation.required:
        schema = {"allOf": [schema, {"required": list(operation.required)}]}
    return {"required": not operation.may_be_empty, "content": {JSON: {"schema": schema}}}


def _answer(operation: Operation, routes: Sequence[DescribedRoute]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is None:
        content[operation.text_type] = {"schema": {"type": "string"}}
    else:
        content[JSON] = {"schema": reference_to(operation.answer)}
    if operation.events is not None:
        kind = JSON_LINES if operation.tag is Tag.OLLAMA else SENT_EVENTS
        # OpenAPI 3.1 has no words for the parts of a stream; `itemSchema` of 3.2 says the same.
        content[kind] = {"schema": {"type": "string"}, "x-itemSchema": reference_to(operation.events)}
    answer: dict[str, Any] = {"description": "The answer.", "content": content}
    if operation.access is Access.KEY:
        answer["headers"] = _REQUEST_ID
    if operation.makes:
        answer["links"] = dict(_links(operation, routes))
    return answer


def _links(operation: Operation, routes: Sequence[DescribedRoute]) -> Iterator[tuple[str, Any]]:
    """Yield the operations that take the id of an answer, each with the place that has it."""
    place = "request_id" if operation.tag is Tag.NATIVE else "id"
    for route in routes:
        if operation.makes in route.route.param_convertors:
            name = route.operation.name
            yield name, {"operationId": name, "parameters": {operation.makes: f"$response.body#/{place}"}}


def _own_failures(operation: Operation) -> dict[str, Any]:
    """Return the answer of a probe for an unready system."""
    if operation.access is not Access.PROBE:
        return {}
    return {"503": {"description": "Not now.", "content": {"text/plain": {"schema": {"type": "string"}}}}}
