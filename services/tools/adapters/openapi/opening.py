"""Creates tools from OpenAPI documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import httpx2

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.telemetry.logging import get_logger
from services.tools.adapters.http_guard import Bounds, GuardedTransport, guarded_client
from services.tools.adapters.openapi.configuration import ApiSpec
from services.tools.adapters.openapi.document_file import find_problems, read_document
from services.tools.adapters.openapi.operation_tool import OperationTool
from services.tools.app.registry import ToolRegistry
from services.tools.core.openapi.documents import Translation, refusal_of, translate
from services.tools.ports import make_places

MAX_LISTED_REASONS = 3
MAX_LOGGED = 50

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """The limits on the tools, messages and connections of an API."""

    max_tools: int = 128
    max_tool_bytes: int = 32_768
    max_message_bytes: int = 1024 * 1024
    max_connections: int = 64


def read_api(spec: ApiSpec) -> Translation:
    """Return the selected operations. Raises InvalidRequest if the document has no usable operation."""
    document = read_document(spec.document)
    where = f"OPENAPI: api {spec.name!r}: document {str(spec.document)!r}"
    if reason := refusal_of(document):
        raise InvalidRequest(f"{where} cannot be used: {reason}")
    problems = find_problems(document)
    translation = translate(document, problems=problems, supplied=spec.supplied, patterns=spec.patterns)
    if translation.unmatched:
        raise InvalidRequest(f"{where} has no operation that {translation.unmatched[0]!r} matches")
    if problems:
        log.warning(
            "an openapi document breaks the standard", api=spec.name, places=len(problems), first=problems[0][1]
        )
    return translation


def open_client(spec: ApiSpec, limits: ApiLimits) -> httpx2.AsyncClient:
    """Return a client that calls only the host of the API's URL."""
    bounds = Bounds(spec.hosts, "OPENAPI", limits.max_message_bytes, "ask for less")
    return guarded_client(GuardedTransport(bounds, max_connections=limits.max_connections), {})


def register_api(
    spec: ApiSpec, translation: Translation, registry: ToolRegistry, client: httpx2.AsyncClient, limits: ApiLimits
) -> Mapping[str, str]:
    """Register the operations of an API as tools. Returns the reason for each omitted tool by name.

    Raises InvalidRequest if no tool remains.
    """
    left_out = {operation.name: operation.reason for operation in translation.left_out}
    places = make_places(limits.max_connections, max(1, limits.max_connections // 2))
    tools = [OperationTool(spec, operation, client, places) for operation in translation.operations]
    fitting = list(_fitting(tools, limits, left_out))
    left_out.update(registry.replace(f"api {spec.name}", fitting))
    _log_properties(spec, translation)
    for name, reason in islice(left_out.items(), MAX_LOGGED):
        log.warning("an operation of an api is left out", api=spec.name, operation=name[:80], reason=reason)
    count = len(registry.list_of(f"api {spec.name}"))
    if not count:
        reasons = "; ".join(f"{name[:80]}: {reason}" for name, reason in islice(left_out.items(), MAX_LISTED_REASONS))
        raise InvalidRequest(f"OPENAPI: api {spec.name!r}: no operation can be a tool: {reasons or 'there is none'}")
    log.info("api has become tools", api=spec.name, tools=count, left_out=len(left_out))
    return left_out


def _log_properties(spec: ApiSpec, translation: Translation) -> None:
    """Log the optional form properties that are not arguments."""
    incomplete = [operation for operation in translation.operations if operation.left_out]
    for operation in islice(incomplete, MAX_LOGGED):
        name, reason = next(iter(operation.left_out.items()))
        log.warning(
            "properties of a form are left out",
            api=spec.name,
            operation=operation.name[:80],
            properties=len(operation.left_out),
            first=f"{name[:80]}: {reason}",
        )


def _fitting(tools: list[OperationTool], limits: ApiLimits, left_out: dict[str, str]) -> Iterator[OperationTool]:
    """Yield the tools within the limits, and record the reason for each other tool."""
    count = 0
    for tool in tools:
        definition = tool.definition
        size_bytes = sum(
            len(text.encode()) for text in (definition.name, definition.description, definition.parameters_json)
        )
        if size_bytes > limits.max_tool_bytes:
            left_out[definition.name] = (
                f"it has {size_bytes} bytes, at most {limits.max_tool_bytes} are taken: shorten its schema"
            )
        elif count >= limits.max_tools:
            left_out[definition.name] = (
                f"the api has more than {limits.max_tools} tools: name its operations, or raise OPENAPI_MAX_TOOLS"
            )
        else:
            count += 1
            yield tool
