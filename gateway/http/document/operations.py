"""What a path says of itself: the form that it takes, and the answer that it gives."""

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
    """What a path asks of its caller."""

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
    """What a method of a path does.

    Args:
        tag: The API that it belongs to.
        name: Names it in clients that are generated.
        summary: Says what it does.
        form: Of the body; None for no body.
        answer: Of status 200; None for a text.
        events: The JSON in each event or line, where the answer may be a stream.
        parameters: All but those in the path.
        required: Fields that the body must have, though other uses of the form may leave them out.
        takes_file: Whether the body is a file, which the endpoint reads by itself.
        may_be_empty: Whether the body may be left out.
        text_type: The content type of an answer that is a text.
        access: What it asks of its caller.
        makes: The parameter of other paths for which the id of the answer stands; empty for none.
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
    """A path with one method, and what it does."""

    route: Route
    method: str
    operation: Operation

    @property
    def path(self) -> str:
        """The path, in which parameters stand in braces."""
        return self.route.path_format


def describe(routes: Iterable[Route], operations: Operations) -> list[DescribedRoute]:
    """Return routes with what they do; raises LookupError for one that says nothing of itself."""
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
