"""Reads the bodies of requests and the parameters in paths and queries, and defines the shape of answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from pydantic import with_config
from starlette.requests import Request
from typing_extensions import TypedDict  # Before Python 3.12, pydantic does not accept the TypedDict of `typing`.

from gateway.web.bodies import RequestBody, check_values
from gateway.web.refusal import Refusal
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

# The location of the body schemas in the API document.
SCHEMAS = "#/components/schemas/"
# Limits the size of a list page, because a page of large objects would exhaust the memory.
MAX_PAGE_BYTES = 2 * 1024 * 1024
_JSON_TYPES = ("application/json", "text/json")
# The types that programs send by default, without regard to the content.
_VAGUE_TYPES = ("", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded")
MessageT = TypeVar("MessageT", bound=Message)
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


@with_config(extra="allow")
class AnswerShape(TypedDict):
    """A JSON object of an answer. mypy checks the code that builds it, and the API document contains its schema."""


class Done(AnswerShape):
    """An empty answer that confirms the success of the request."""


def refuse_other_types(request: Request) -> None:
    """Raise Refusal if a request's headers declare a body that is not JSON or is encoded.

    Programs such as curl may send JSON with a type that declares nothing. A web page must declare JSON, because its
    browser sends most of the other types without asking for permission.
    """
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind in _JSON_TYPES or kind.endswith("+json")
    if not is_json and kind not in _VAGUE_TYPES:
        raise Refusal(415, f"the content type is {kind[:64]!r}: send application/json")
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    if not is_json and has_body and headers.get("origin"):
        raise Refusal(415, "a web page must send JSON with `content-type: application/json`")
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise Refusal(415, f"the content encoding is {encoding[:64]!r}: send the body as it is")


class JsonBody(bytes):
    """The body of a request, with its JSON value and the limits for processing it."""

    value: Any
    source: RequestBody

    @classmethod
    async def read(cls, body: bytes, source: RequestBody) -> JsonBody:
        """Parse a body. Raises InvalidRequest if the body is not JSON or has too many values."""
        read = cls(body)
        read.source = source
        read.value = await source.work_on(body, parse_body, body)
        return read


def parse_body(body: bytes) -> Any:
    """Return the value of a body. Raises InvalidRequest if the body is not JSON or has too many values."""
    check_values(body)
    try:
        return parse_json(body.decode(), is_rewritable=True)
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None
    except JsonTextError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None


def read_object(body: bytes) -> dict[str, Any]:
    """Return the value of a body. Raises InvalidRequest if the body is not a JSON object."""
    value = body.value if isinstance(body, JsonBody) else parse_body(body)
    if not isinstance(value, dict):
        raise InvalidRequest("the body is no JSON object")
    return value


async def apart(
    body: bytes, work: Callable[ParamsT, ResultT], *args: ParamsT.args, **options: ParamsT.kwargs
) -> ResultT:
    """Run synchronous work on the value of a body, in a thread if the body is large, and return the result."""
    if isinstance(body, JsonBody):
        return await body.source.work_on(body, work, *args, **options)
    return work(*args, **options)


def reading_stored(body: bytes) -> AbstractAsyncContextManager[object]:
    """Hold a place for the caller's reads of stored content inside the block."""
    return body.source.reading() if isinstance(body, JsonBody) else nullcontext()


def hold_stored(body: bytes, size_bytes: int) -> None:
    """Raise the byte count of a request to `size_bytes`, including stored content, until the request ends.

    Raises Refusal if the bodies of running requests leave too little memory.
    """
    if isinstance(body, JsonBody):
        body.source.hold_stored(size_bytes)


def read_message(value: Any, kind: type[MessageT], name: str = "the body") -> MessageT:
    """Parse a JSON value as a message. Raises InvalidRequest, which names the value, if the value has another form."""
    try:
        return json_format.ParseDict(value, kind())
    except (json_format.ParseError, TypeError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequest(f"{name} is not a {kind.DESCRIPTOR.name} as JSON: {reason}") from None


def read_count(name: str, text: str, *, otherwise: int, most: int) -> int:
    """Parse a parameter as a number from 0 to `most`. Raises InvalidRequest for any other value."""
    if not text:
        return otherwise
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
        raise InvalidRequest(f"{name} is {text[:32]!r}: send a number from 0 to {most}")
    return int(text)


def take_request_id(sent: execution_pb2.SystemRequest, request: Request) -> None:
    """Set a request's id to the id of the HTTP request unless the client chose an id. The response reports the id."""
    sent.request_id = sent.request_id or request.scope["request_id"]
    request.scope["request_id"] = sent.request_id
