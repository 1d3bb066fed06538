"""The client for asyncio programs: one orchestrator, its errors raised as PaganticError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc
from pydantic import BaseModel, ValidationError

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.client.requests import Hints, Messages, chat_request, structured_request
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.domain.errors import ErrorCode, failure_of
from pagantic_common.domain.messages import ToolChoice
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.status import error_of

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TIMEOUT_S = 120.0
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_SERVICE = "orchestrator"

ModelT = TypeVar("ModelT", bound=BaseModel)


def raise_for_error(response: execution_pb2.SystemResponse) -> execution_pb2.SystemResponse:
    """Return the response, or raise the PaganticError that its error stands for."""
    if response.HasField("error"):
        raise error_of(failure_from_proto(response.error))
    return response


class AsyncClient:
    """Talks to one orchestrator. Use it as an async context manager, or close it.

    Args:
        address: host:port of the orchestrator.
        timeout_s: Longest time for each call, seconds.
        max_message_bytes: Largest message taken or sent.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._max_message_bytes = max_message_bytes
        self._channel: grpc.aio.Channel | None = None
        self._made_stub: rpc.OrchestratorServiceAsyncStub | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        channel, self._channel, self._made_stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def chat(
        self,
        text_or_messages: Messages,
        *,
        session_id: str = "",
        tools: Sequence[str] | None = None,
        tool_choice: str | ToolChoice | None = None,
        system: str = "",
        **hints: Unpack[Hints],
    ) -> execution_pb2.SystemResponse:
        """Take a chat turn; raises PaganticError when it failed. Arguments are those of `chat_request`."""
        request = chat_request(
            text_or_messages, session_id=session_id, tools=tools, tool_choice=tool_choice, system=system, **hints
        )
        return raise_for_error(await self.execute(request))

    async def structured(
        self, text_or_messages: Messages, output_type: type[ModelT], *, system: str = "", **hints: Unpack[Hints]
    ) -> ModelT:
        """Return an instance of `output_type` made from the text; raises PaganticError when that failed."""
        request = structured_request(text_or_messages, output_type.model_json_schema(), system=system, **hints)
        response = raise_for_error(await self.execute(request))
        try:
            return output_type.model_validate_json(response.structured_output_json)
        except ValidationError as error:
            # The schema held, so this is a validator of the type's own.
            message = f"the answer satisfies the schema of {output_type.__name__!r} but not its validators"
            details = {"violations": [problem["msg"] for problem in error.errors(include_input=False)]}
            raise error_of(failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, message, details=details)) from error

    async def execute(self, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
        """Run a request; a failure of the work is the response's error, only what kept it from running is raised."""
        return await call_unary(_SERVICE, self._stub().Execute, request, self._timeout_s)

    def stream(self, request: execution_pb2.SystemRequest) -> AsyncGenerator[event_pb2.ExecutionEvent, None]:
        """Run a request and yield what happens; the last event is `completed`. Close it when leaving early."""
        return call_stream(_SERVICE, self._stub().ExecuteStream, request, self._timeout_s)

    async def timeline(self, request_id: str) -> list[event_pb2.ExecutionEvent]:
        """Return the stored events of an execution, in sequence."""
        request = pb.GetTimelineRequest(request_id=request_id)
        return list((await call_unary(_SERVICE, self._stub().GetTimeline, request, self._timeout_s)).events)

    async def get_execution(self, request_id: str) -> execution_pb2.Execution:
        """Tell where an execution stands; raises NotFound."""
        request = pb.GetExecutionRequest(request_id=request_id)
        return (await call_unary(_SERVICE, self._stub().GetExecution, request, self._timeout_s)).execution

    async def cancel(self, request_id: str) -> execution_pb2.LifecycleState.ValueType:
        """Cancel an execution and return the state it ended in; raises NotFound."""
        request = pb.CancelExecutionRequest(request_id=request_id)
        return (await call_unary(_SERVICE, self._stub().CancelExecution, request, self._timeout_s)).state

    async def resume(self, request_id: str) -> execution_pb2.LifecycleState.ValueType:
        """Have an interrupted execution taken up again; returns the state it was in.

        Raises NotFound, and PreconditionFailed for one that is not interrupted.
        """
        request = pb.ResumeExecutionRequest(request_id=request_id)
        return (await call_unary(_SERVICE, self._stub().ResumeExecution, request, self._timeout_s)).state

    async def get_usage(self, *, session_id: str = "", model: str = "") -> list[pb.UsageTotal]:
        """Return what ended executions used and cost, by session and model; empty filters are all."""
        request = pb.GetUsageRequest(session_id=session_id, model=model)
        return list((await call_unary(_SERVICE, self._stub().GetUsage, request, self._timeout_s)).totals)

    async def get_session(self, session_id: str) -> pb.Session:
        """Return a stored conversation; raises NotFound."""
        request = pb.GetSessionRequest(session_id=session_id)
        return (await call_unary(_SERVICE, self._stub().GetSession, request, self._timeout_s)).session

    async def list_sessions(self) -> list[pb.Session]:
        """Return all stored conversations without their messages, last used first."""
        sessions: list[pb.Session] = []
        token = ""
        while True:
            request = pb.ListSessionsRequest(page_token=token)
            page = await call_unary(_SERVICE, self._stub().ListSessions, request, self._timeout_s)
            sessions += page.sessions
            if not (token := page.next_page_token):
                return sessions

    async def delete_session(self, session_id: str) -> None:
        """Remove a stored conversation; raises NotFound."""
        request = pb.DeleteSessionRequest(session_id=session_id)
        await call_unary(_SERVICE, self._stub().DeleteSession, request, self._timeout_s)

    def _stub(self) -> rpc.OrchestratorServiceAsyncStub:
        # The channel belongs to the event loop that first uses the client, so it is not opened before.
        if self._made_stub is None:
            self._channel = open_channel(self.address, max_message_bytes=self._max_message_bytes)
            self._made_stub = rpc.OrchestratorServiceStub(self._channel)
        return self._made_stub
