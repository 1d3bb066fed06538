"""Defines the operations of the gateway: each has a handler, and a description for the API document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from starlette.routing import Route

from gateway.http.failures import OpenAIError, OpenAIErrorObject
from gateway.http.streams.running import Answer

Shape = type  # A description of a JSON object: a form, the shape of an answer, or a message of the contract.
JSON = "application/json"
SENT_EVENTS = "text/event-stream"
JSON_LINES = "application/x-ndjson"
REQUEST_ID = "x-request-id"


def _openai_error_body(error: OpenAIErrorObject, _status: int, _request_id: str) -> OpenAIError:
    return {"error": error}


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API whose clients the gateway serves.

    Args:
        name: The heading of its operations in the document.
        error: The shape of its errors.
        error_body: Returns the body of an error, given an error of OpenAI's API, its status, and the request's id.
        stream_type: The content type of streams.
        id_headers: Names of the headers that contain the request's id.
    """

    name: str
    error: Shape = OpenAIError
    error_body: Callable[[OpenAIErrorObject, int, str], Any] = _openai_error_body
    stream_type: str = f"{SENT_EVENTS}; charset=utf-8"
    id_headers: tuple[str, ...] = (REQUEST_ID,)


OPENAI = Dialect("OpenAI")
NATIVE = Dialect("native")
PROBE = Dialect("probes")
DOCUMENT = Dialect("document")


class Access(StrEnum):
    """The requirements that an operation places on its callers."""

    KEY = "a key, where the gateway or the orchestrator asks for one"
    ADMIN = "a key with the scope admin, where the orchestrator asks for keys"
    OPEN = "a known host and origin alone"
    PROBE = "nothing"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query, or in the location `where`."""

    name: str
    schema: dict[str, Any]
    summary: str
    where: str = "query"
    style: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    Args:
        dialect: The API that the operation belongs to.
        endpoint: The HTTP method and the path, whose parameters are in braces as Starlette reads them.
        handle: Returns the answer, given the client, the request and its body. Its docstring is the summary in the
            document. Without a key, client and body are empty.
        name: The operation's name in generated clients.
        form: The form of the body, or None if there is no body.
        answer: The form of status 200, or None for text.
        events: The JSON in each event or line, if the answer may be a stream.
        parameters: All parameters except the path's.
        required: Fields that the body must have, even if other uses of the form may leave them out.
        takes_file: Whether the body is a file, which the handler reads by itself.
        may_be_empty: Whether the body may be omitted.
        text_type: The content type of a text answer.
        access: The operation's requirements for callers.
        makes: The parameter of other paths that accepts the id of the answer, or empty without this parameter.
        reads_stored: Whether the handler reads stored content, so that it holds one of the caller's places for reads
            until it returns. None means every GET. A handler that reads within `reading_stored` must not hold a
            second place, because such handlers could wait for each other.
    """

    dialect: Dialect
    endpoint: str
    handle: Callable[..., Awaitable[Answer]]
    name: str
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
    reads_stored: bool | None = field(default=None, kw_only=True)
    route: Route = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "route", Route(self.endpoint.partition(" ")[2], self.handle, methods=[self.method]))

    @property
    def needs_key(self) -> bool:
        """Whether the operation calls the orchestrator for the caller."""
        return self.access in (Access.KEY, Access.ADMIN)

    @property
    def is_read(self) -> bool:
        """Whether the operation reads stored content for the caller, which takes memory until the answer is sent."""
        reads_stored = self.method == "GET" if self.reads_stored is None else self.reads_stored
        return self.needs_key and reads_stored

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.endpoint.partition(" ")[0]

    @property
    def summary(self) -> str:
        """The description of the operation."""
        return self.handle.__doc__ or ""

    @property
    def path(self) -> str:
        """The path, with the names of its parameters in braces."""
        return self.route.path_format
