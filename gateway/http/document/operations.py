"""The description of a path: the form of its requests, and of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from google.protobuf.descriptor import Descriptor
from pydantic import BaseModel
from starlette.routing import Route

Shape = type[BaseModel] | Descriptor  # A JSON object: of an API, or a message of the contract.
JSON = "application/json"
SENT_EVENTS = "text/event-stream"
JSON_LINES = "application/x-ndjson"


class Tag(StrEnum):
    """The API that a path belongs to."""

    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"
    MODELS = "OpenAI and Anthropic"
    OLLAMA = "Ollama"
    RERANK = "Cohere and Jina"
    NATIVE = "native"
    PROBES = "probes"
    DOCUMENT = "document"


class Access(StrEnum):
    """The requirements of a path for its callers."""

    KEY = "a key, where the gateway or the orchestrator asks for one"
    OPEN = "a known host and origin alone"
    PROBE = "nothing"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query, or in the place that `where` names."""

    name: str
    schema: dict[str, Any]
    summary: str
    where: str = "query"
    style: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of a method of a path.

    Args:
        tag: The API that it belongs to.
        name: Its name in generated clients.
        summary: A description of it.
        form: The form of the body; None for no body.
        answer: The form of status 200; None for a text.
        events: The JSON in each event or line, if the answer may be a stream.
        parameters: All parameters except the path's.
        required: Fields that the body must have, even if other uses of the form may leave them out.
        takes_file: Whether the body is a file, which the endpoint reads by itself.
        may_be_empty: Whether the body may be left out.
        text_type: The content type of a text answer.
        access: Its requirements for callers.
        makes: The parameter of other paths that takes the id of the answer; empty without such a parameter.
    """

    tag: Tag
    name: str
    summary: str
    form: Shape | None = None
    answer: Shape | None = None
    events: Shape | None = None
    parameters: tuple[Parameter, ...] = ()
    required: tuple[str, ...] = ()
    takes_file: bool = field(default=False, kw_only=True)
    may_be_empty: bool = field(default=False, kw_only=True)
    text_type: str = field(default="text/plain", kw_only=True)
    access: Access = field(default=Access.KEY, kw_only=True)
    makes: str = field(default="", kw_only=True)


Operations = Mapping[tuple[str, str], Operation]  # The keys are methods with their paths.


@dataclass(frozen=True, slots=True)
class DescribedRoute:
    """A path with a method, and its description."""

    route: Route
    method: str
    operation: Operation

    @property
    def path(self) -> str:
        """The path, with parameters in braces."""
        return self.route.path_format


def describe(routes: Iterable[Route], operations: Operations) -> list[DescribedRoute]:
    """Return routes with their descriptions; raises LookupError for a route without a description."""
    return [
        DescribedRoute(route, method, _operation_of(method, route, operations))
        for route in routes
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def _operation_of(method: str, route: Route, operations: Operations) -> Operation:
    operation = operations.get((method, route.path_format))
    if operation is None:
        raise LookupError(f"{method} {route.path_format} has no operation: gateway/http/document/tables lists them")
    return operation
