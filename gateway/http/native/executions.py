"""The native API: a SystemRequest as JSON, its events as they happen, and the orchestrator's execution record."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import MAX_PAGE_BYTES, apart, read_count, read_message, read_object
from gateway.http.operations import NATIVE, Operation, Parameter
from gateway.http.settings import HttpSettings
from gateway.http.streams.event_ids import EventIds
from gateway.http.streams.running import QUIET, QUIET_S, Answer, merge_events
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient
from pagantic_common.codec.messages import duration_to_proto
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id

MessageT = TypeVar("MessageT", bound=Message)
MAX_PAGE = 500
MAX_SEQUENCE = 2**63 - 1
_AFTER = "Only events above this sequence: the `next_after_sequence` of the page before."


def execution_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of executions."""

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Run a request. With `Accept: text/event-stream`, the answer consists of the request's events."""
        system_request = await apart(
            body, read_request, read_object(body), request.scope["request_id"], settings.call_s
        )
        request.scope["request_id"] = system_request.request_id
        if _wants_events(request):
            return stream_events(client.stream(system_request), EventIds())
        return JSONResponse(plain(await client.execute(system_request)))

    execution = "/v1/executions/{request_id}"
    last_id = Parameter("last-event-id", {"type": "string"}, "The id of the last event that the client has.", "header")
    return [
        Operation(
            NATIVE,
            "POST /v1/executions",
            create,
            "execute",
            execution_pb2.SystemRequest,
            execution_pb2.SystemResponse,
            event_pb2.ExecutionEvent,
            makes="request_id",
        ),
        Operation(
            NATIVE, "GET /v1/executions", _list, "listExecutions", answer=pb.ListExecutionsResponse, parameters=_FILTERS
        ),
        Operation(
            NATIVE,
            f"GET {execution}",
            _retrieve,
            "getExecution",
            answer=execution_pb2.Execution,
            events=event_pb2.ExecutionEvent,
            parameters=(last_id,),
        ),
        Operation(NATIVE, f"DELETE {execution}", _cancel, "cancelExecution", answer=pb.CancelExecutionResponse),
        Operation(
            NATIVE,
            f"GET {execution}/timeline",
            _timeline,
            "getTimeline",
            answer=pb.GetTimelineResponse,
            parameters=(Parameter("after_sequence", {"type": "integer", "minimum": 0}, _AFTER),),
        ),
        Operation(
            NATIVE,
            f"GET {execution}/steps",
            _steps,
            "listSteps",
            answer=pb.ListStepsResponse,
            parameters=(Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),),
        ),
        Operation(
            NATIVE,
            f"POST {execution}/signals",
            _signal,
            "signalExecution",
            pb.SignalExecutionRequest,
            pb.SignalExecutionResponse,
        ),
        Operation(
            NATIVE, "GET /v1/waits", _list_waits, "listWaits", answer=pb.ListWaitsResponse, parameters=_WAIT_FILTERS
        ),
    ]


def _names(values: Any) -> list[str]:
    """Return the names of an enum's values, without the unset value."""
    return [name for name, number in values.items() if number]


_FILTERS = (
    Parameter("session_id", {"type": "string"}, "Only those of this session."),
    Parameter("state", {"enum": _names(execution_pb2.LifecycleState)}, "Only those in this state."),
    Parameter("mode", {"enum": _names(execution_pb2.Mode)}, "Only those in this mode."),
    Parameter("page_size", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most executions; 0 is 50."),
    Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),
)


_WAIT_FILTERS = (
    Parameter("request_id", {"type": "string"}, "Only waits of this execution."),
    Parameter("page_size", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most waits; 0 is 50."),
    Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),
)


async def _list(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List executions without their responses, the newest first."""
    page = await client.list_executions_page(_read_query(request, _FILTERS, pb.ListExecutionsRequest))
    return JSONResponse(
        {"executions": [plain(execution) for execution in page.executions], "next_page_token": page.next_page_token}
    )


async def _retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get an execution, or follow its events."""
    request_id = request.path_params["request_id"]
    if not _wants_events(request):
        return JSONResponse(plain(await client.get_execution(request_id)))
    ids = EventIds(request.headers.get("last-event-id", ""))
    return stream_events(client.follow(request_id, after_sequence=ids.after_sequence), ids)


async def _timeline(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get the stored events of an execution. A large page has `next_after_sequence`."""
    after = read_count("after_sequence", request.query_params.get("after_sequence", ""), otherwise=0, most=MAX_SEQUENCE)
    query = pb.GetTimelineRequest(request_id=request.path_params["request_id"], after_sequence=after)
    page = await client.timeline_page(query)
    while page.next_after_sequence and page.ByteSize() < MAX_PAGE_BYTES:
        query.after_sequence = page.next_after_sequence
        page.ClearField("next_after_sequence")
        page.MergeFrom(await client.timeline_page(query))
    return JSONResponse({"events": [], **plain(page)})


async def _steps(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List the results of the steps of a kept execution. A large page has `next_page_token`."""
    query = pb.ListStepsRequest(
        request_id=request.path_params["request_id"], page_token=request.query_params.get("page_token", "")
    )
    page = await client.list_steps_page(query)
    while page.next_page_token and page.ByteSize() < MAX_PAGE_BYTES:
        query.page_token = page.next_page_token
        page.ClearField("next_page_token")
        page.MergeFrom(await client.list_steps_page(query))
    return JSONResponse({"steps": [], **plain(page)})


async def _cancel(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Cancel an execution."""
    state = await client.cancel(request.path_params["request_id"])
    return JSONResponse({"state": execution_pb2.LifecycleState.Name(state)})


async def _signal(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Send a signal to an execution. The wait for its name takes it."""
    signal = await apart(body, read_message, read_object(body), pb.SignalExecutionRequest)
    take_path(signal, request)
    return JSONResponse({"signal_id": await client.send_signal(signal)})


async def _list_waits(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List the open waits of executions, the oldest first."""
    page = await client.list_waits_page(_read_query(request, _WAIT_FILTERS, pb.ListWaitsRequest))
    return JSONResponse({"waits": [plain(wait) for wait in page.waits], "next_page_token": page.next_page_token})


def take_path(message: Message, request: Request) -> None:
    """Set the fields of a body that the path names. Raises InvalidRequest if the body has other values for them."""
    for name, value in request.path_params.items():
        if getattr(message, name) not in ("", value):
            raise InvalidRequest(f"{name} of the body is not {value[:128]!r} as in the path: leave it out of the body")
        setattr(message, name, value)


def _read_query(request: Request, parameters: Iterable[Parameter], kind: type[MessageT]) -> MessageT:
    """Return the message in the parameters of a query. Other parameters are ignored."""
    names = {parameter.name for parameter in parameters}
    query = {name: value for name, value in request.query_params.items() if name in names and value}
    return read_message(query, kind, "the query")


def read_request(value: Any, request_id: str, call_s: float) -> execution_pb2.SystemRequest:
    """Return the request in a body. Raises InvalidRequest if the body is invalid."""
    request = read_message(value, execution_pb2.SystemRequest)
    request.request_id = require_id("request_id", request.request_id or request_id)  # It is also a response header.
    asked_s = request.hints.timeout.ToMilliseconds() / 1000
    if not asked_s or asked_s > call_s:
        request.hints.timeout.CopyFrom(duration_to_proto(call_s))
    return request


def plain(message: Message) -> dict[str, Any]:
    """Return a message in JSON form, with the names of the contract."""
    fields: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return fields


async def stream_events(
    incoming: AsyncGenerator[event_pb2.ExecutionEvent, None], ids: EventIds
) -> AsyncGenerator[str, None]:
    """Yield the events as server-sent events, `completed` last. Raises if the request did not run."""
    async with aclosing(merge_events([incoming], QUIET_S)) as events:
        async for item in events:
            if item is None:
                yield QUIET
                continue
            event = item[1]
            if event_id := ids.number(event):
                text = json_format.MessageToJson(event, preserving_proto_field_name=True, indent=None)
                yield f"id: {event_id}\nevent: {event.WhichOneof('event')}\ndata: {text}\n\n"


def _wants_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")
