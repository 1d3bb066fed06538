"""The client for asyncio programs. It calls an orchestrator and raises its errors as PaganticError."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

import grpc

from pagantic.context.v1 import context_service_pb2, context_service_pb2_grpc
from pagantic.orchestrator.v1 import decision_pb2, event_pb2, execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc
from pagantic_common.client.connections import Connections
from pagantic_common.client.credentials import credentials_for
from pagantic_common.client.following import FOLLOWING_PATIENCE_S, Following, FollowingOptions, OnLost
from pagantic_common.client.hints import Choice, Options
from pagantic_common.client.requests import (
    ASKED_CHUNKS,
    AUTO,
    Messages,
    ask_request,
    chat_request,
    decide_request,
    structured_request,
    timeout_of,
    vote_request,
)
from pagantic_common.client.responses import Patience, answered, answered_stream, raise_for_error
from pagantic_common.client.sources.methods import Sources
from pagantic_common.client.stored.sessions import Sessions
from pagantic_common.client.typed_output import (
    OutputType,
    StructuredResult,
    ValueT,
    refusals_of,
    refused,
    with_refusal,
)
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES, REQUEST_TIMEOUT_S, local_address
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import GRACE_S, call_stream, call_unary
from pagantic_common.rpc.status import no_answer

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ResponseT = TypeVar("ResponseT")

RESPONSE_GRACE_S = 5.0
CANCEL_S = 5.0
PATIENCE_S = 10.0
VALIDATION_RETRIES = 2
_SERVICE = "orchestrator"


class AsyncClient(Sessions, Sources):
    """Calls an orchestrator. Use it as an async context manager, or call `close`.

    Args:
        address: host:port of the orchestrator, or https://host:port for TLS. None selects PAGANTIC_ADDRESS or, if that
            is unset, the local default. The TLS files are named by PAGANTIC_TLS_CA_FILE, _CERT_FILE and _KEY_FILE.
        timeout_s: Maximum time for each call, in seconds.
        patience_s: Maximum time for resending a request with a `request_id` while the orchestrator is UNAVAILABLE, for
            example during its replacement; 0 sends the request once. A stream is resent only before its first event.
            After that event, the stream continues only if the request runs in the background, as `follow_to_end`
            arranges.
        api_key: API key sent with each call. None selects PAGANTIC_API_KEY, or the first line of the file
            PAGANTIC_API_KEY_FILE. Raises InvalidRequest if the key would leave this machine in plain text, unless
            PAGANTIC_PLAINTEXT_KEY is 1, which is meant for an encrypting proxy or mesh.
        max_message_bytes: Maximum size of a message to receive or send.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        api_key: str | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._patience_s = patience_s
        self.address = address or os.environ.get("PAGANTIC_ADDRESS") or local_address(_SERVICE)
        self._timeout_s = timeout_s
        self._target = find_target(self.address, os.environ)
        self._credentials = credentials_for(self._target, api_key, os.environ)
        self._connections = Connections(lambda: self._target.open(max_message_bytes))
        self._stopping: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections and cancel running calls, within a few seconds."""
        loop = asyncio.get_running_loop()
        stopping = [task for task in self._stopping if task.get_loop() is loop]
        await asyncio.gather(*stopping, return_exceptions=True)
        await self._connections.close()

    def for_caller(self, api_key: str) -> Self:
        """Return a client that sends another key over the same connections. Closing this client closes both.

        Raises InvalidRequest if the key would leave this machine in plain text.
        """
        other = copy.copy(self)
        other._credentials = credentials_for(self._target, api_key, os.environ)  # noqa: SLF001 - of its own class
        return other

    async def chat(
        self,
        text_or_messages: Messages,
        *,
        session_id: str = "",
        tools: Sequence[str] | None = None,
        client_tools: Sequence[ToolDefinition] = (),
        tool_choice: Choice = None,
        system: str = "",
        **options: Unpack[Options],
    ) -> execution_pb2.SystemResponse:
        """Run a chat turn. Raises PaganticError on failure. See `chat_request` for the arguments."""
        request = chat_request(
            text_or_messages,
            session_id=session_id,
            tools=tools,
            client_tools=client_tools,
            tool_choice=tool_choice,
            system=system,
            **options,
        )
        return raise_for_error(await self.execute(request))

    async def ask(
        self,
        collection: str,
        question: str,
        *,
        retriever: str = AUTO,
        max_chunks: int = ASKED_CHUNKS,
        filter: str = "",  # noqa: A002 - the policy's field
        queries: int = 0,
        hypothetical_document: bool = False,
        min_probability: float | None = None,
        slope: float | None = None,
        intercept: float | None = None,
        **options: Unpack[Options],
    ) -> execution_pb2.SystemResponse:
        """Answer from a collection, with citations. Raises PaganticError on failure.

        See `ask_request` for the arguments.

        The retriever "auto" selects "hybrid" if the collection has embeddings, and otherwise "bm25". It looks up the
        collection, which needs a key with the scope READ.
        """
        if retriever == AUTO:
            retriever = await self._choose_retriever(collection, hypothetical_document=hypothetical_document)
        request = ask_request(
            collection,
            question,
            retriever=retriever,
            max_chunks=max_chunks,
            filter=filter,
            queries=queries,
            hypothetical_document=hypothetical_document,
            min_probability=min_probability,
            slope=slope,
            intercept=intercept,
            **options,
        )
        return raise_for_error(await self.execute(request))

    @overload
    async def structured(
        self,
        text_or_messages: Messages,
        output_type: type[ValueT] | TypeAdapter[ValueT],
        *,
        full: Literal[False] = False,
        validation_retries: int = VALIDATION_RETRIES,
        tools: Sequence[str] = (),
        system: str = "",
        **options: Unpack[Options],
    ) -> ValueT: ...

    @overload
    async def structured(
        self,
        text_or_messages: Messages,
        output_type: type[ValueT] | TypeAdapter[ValueT],
        *,
        full: Literal[True],
        validation_retries: int = VALIDATION_RETRIES,
        tools: Sequence[str] = (),
        system: str = "",
        **options: Unpack[Options],
    ) -> StructuredResult[ValueT]: ...

    async def structured(
        self,
        text_or_messages: Messages,
        output_type: type[ValueT] | TypeAdapter[ValueT],
        *,
        full: bool = False,
        validation_retries: int = VALIDATION_RETRIES,
        tools: Sequence[str] = (),
        system: str = "",
        **options: Unpack[Options],
    ) -> ValueT | StructuredResult[ValueT]:
        """Return a value of `output_type` that the model makes from the text. Raises PaganticError on failure.

        Args:
            text_or_messages: The user's text, or messages that end with a user message.
            output_type: A pydantic model, a dataclass, `list[X]`, a union, or a TypeAdapter.
            full: Whether to return a StructuredResult, which holds the value with its response, usage and guarantee.
            validation_retries: Maximum number of retries after the type's validators refuse an answer. Each retry is a
                separate request that states the validators' objections.
            tools: Names of tools that the model may call before it answers.
            system: System prompt.
            options: See Options.
        """
        from pydantic import ValidationError  # noqa: PLC0415 - slow to import, and needed here alone

        output = OutputType[ValueT](output_type)
        request = structured_request(text_or_messages, output.schema(), tools=tools, system=system, **options)
        first_id = request.request_id
        for refusals in itertools.count():
            response = raise_for_error(await self.execute(request))
            try:
                value = output.value_of(response)
            except ValidationError as error:
                violations = refusals_of(error)
                if refusals >= validation_retries:
                    # The traceback of the cause would keep the whole answer in memory.
                    raise refused(output.name, violations) from None
                messages = with_refusal(request.messages, response.structured_output_json, violations)
                del request.messages[:]
                request.messages.extend(messages)
                if first_id:
                    request.request_id = f"{first_id[:120]}.{refusals + 2}"
                continue
            if full:
                return StructuredResult(value, response, refusals)
            return value
        raise AssertionError("the loop returns or raises")

    async def vote(
        self,
        text_or_messages: Messages,
        schema: Mapping[str, Any] | bool | str,
        *,
        n: int = 0,
        strategy: str = "majority",
        min_agreement: float = 0.0,
        early_stop: bool = False,
        system: str = "",
        **options: Unpack[Options],
    ) -> execution_pb2.SystemResponse:
        """Run a vote. Raises PaganticError on failure. See `vote_request` for the arguments."""
        request = vote_request(
            text_or_messages,
            schema,
            n=n,
            strategy=strategy,
            min_agreement=min_agreement,
            early_stop=early_stop,
            system=system,
            **options,
        )
        return raise_for_error(await self.execute(request))

    async def decide(
        self,
        text_or_messages: Messages,
        questions: Sequence[decision_pb2.Question | str],
        *,
        min_confidence: float = 0.0,
        min_label_mass: float = 0.0,
        calibration: str = "",
        system: str = "",
        **options: Unpack[Options],
    ) -> Sequence[decision_pb2.Decision]:
        """Answer questions about an input with probabilities. Raises PaganticError on failure.

        See `decide_request` for the arguments. The decisions are in the order of the questions.
        """
        request = decide_request(
            text_or_messages,
            questions,
            min_confidence=min_confidence,
            min_label_mass=min_label_mass,
            calibration=calibration,
            system=system,
            **options,
        )
        return raise_for_error(await self.execute(request)).decisions

    async def execute(self, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
        """Run a request and return its response. Raises PaganticError only if the request did not run.

        The error of a failed run is in the response.
        """
        until_s = time.monotonic() + self._time_for(request)
        return await answered(
            lambda: self._call(self._stub().Execute, request, _left_s(until_s)), self._patience_for(request, until_s)
        )

    def stream(self, request: execution_pb2.SystemRequest) -> AsyncGenerator[event_pb2.ExecutionEvent, None]:
        """Run a request and yield its events, `completed` last.

        Close the generator to leave early. A background request with a `request_id` continues over lost connections, as
        in `follow_to_end`, for at most the client's `patience_s` after each loss.
        """
        if not (request.request_id and request.background and self._patience_s):
            return self._begin(request)
        until_s = time.monotonic() + self._time_for(request)
        return self._following(request, begins=True, patience_s=self._patience_s, until_s=until_s).events()

    def follow(self, request_id: str, *, after_sequence: int = 0) -> AsyncGenerator[event_pb2.ExecutionEvent, None]:
        """Yield the events of an execution after `after_sequence`, up to `completed`.

        Leaving early does not cancel the execution.
        """
        return self._follow(request_id, after_sequence, self._timeout_s)

    def _follow(
        self, request_id: str, after_sequence: int, timeout_s: float
    ) -> AsyncGenerator[event_pb2.ExecutionEvent, None]:
        request = pb.FollowExecutionRequest(request_id=request_id, after_sequence=after_sequence)
        return call_stream(
            _SERVICE,
            self._stub().FollowExecution,
            request,
            timeout_s,
            credentials=self._credentials,
            finishes_reads=True,
        )

    def follow_to_end(
        self,
        request_or_id: execution_pb2.SystemRequest | str,
        *,
        after_sequence: int = 0,
        on_lost: OnLost | None = None,
        patience_s: float = FOLLOWING_PATIENCE_S,
    ) -> AsyncGenerator[event_pb2.ExecutionEvent, None]:
        """Yield the events of an execution up to `completed`, over lost connections and without repeating text.

        Two stored events make streamed text void, and AnswerState handles both: `attempt_discarded`, and `resumed`
        during an inference, which then starts over. Close the generator to leave early.

        A request is sent in the background, because its execution would otherwise end with the connection. If the
        request lacks an id or a timeout, it gets an id and the client's `timeout_s`. Leaving early cancels this
        execution. A request that is already in the background is sent unchanged, and continues if its reader leaves. A
        decision cannot run in the background, so its stream is not followed.

        Raises PaganticError if the request fails before its first event, if its time is up, or if the connection is not
        restored.

        Args:
            request_or_id: The request to start, or the id of a started execution.
            after_sequence: Only events after this sequence number are read. A request with `after_sequence` above 0 is
                not sent again.
            on_lost: Called with the failure when a connection is lost, at most once until the next event.
            patience_s: Maximum time without an event after a lost connection, in seconds. Before the first event, the
                client's `patience_s` applies.
        """
        if isinstance(request_or_id, str):
            request, begins, is_own = execution_pb2.SystemRequest(request_id=request_or_id), False, False
        elif request_or_id.mode == execution_pb2.MODE_DECIDE:
            return self._begin(request_or_id)
        else:
            request, begins = self._in_background(request_or_id), not after_sequence
            is_own = begins and not request_or_id.background
        until_s = time.monotonic() + self._time_for(request) if timeout_of(request) else math.inf
        return self._following(
            request,
            begins=begins,
            after_sequence=after_sequence,
            patience_s=patience_s,
            on_lost=on_lost,
            until_s=until_s,
            stop=(lambda: self._stop(request.request_id)) if is_own else None,
        ).events()

    def _begin(self, request: execution_pb2.SystemRequest) -> AsyncGenerator[event_pb2.ExecutionEvent, None]:
        """Stream a request over one connection. Before the first event, resend it until the patience runs out."""
        until_s = time.monotonic() + self._time_for(request)
        return answered_stream(
            lambda: call_stream(
                _SERVICE,
                self._stub().ExecuteStream,
                request,
                _left_s(until_s),
                credentials=self._credentials,
                finishes_reads=True,
            ),
            self._patience_for(request, until_s),
        )

    def _following(
        self,
        request: execution_pb2.SystemRequest,
        *,
        begins: bool,
        until_s: float = math.inf,
        **options: Unpack[FollowingOptions],
    ) -> Following:
        return Following(
            (lambda: self._begin(request)) if begins else None,
            lambda sequence: self._follow(request.request_id, sequence, min(self._timeout_s, _left_s(until_s))),
            until_s=until_s,
            **options,
        )

    def _in_background(self, sent: execution_pb2.SystemRequest) -> execution_pb2.SystemRequest:
        """Return a copy of a request that runs in the background, with an id and a timeout added if missing."""
        request = execution_pb2.SystemRequest()
        request.CopyFrom(sent)
        request.request_id = request.request_id or uuid.uuid4().hex
        if not (request.background or timeout_of(request)):
            request.hints.timeout.FromMilliseconds(round(self._timeout_s * 1000))  # the run must not outlive its reader
        request.background = True
        return request

    async def _stop(self, request_id: str) -> None:
        """Cancel an execution, but give up after a few seconds because the connection may be down."""

        async def cancel() -> None:
            with suppress(PaganticError):
                await self.cancel(request_id, timeout_s=CANCEL_S)

        # Cancel in a separate task, because the reader may be cancelled again while it shuts down.
        stopping = asyncio.create_task(cancel())
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        await asyncio.shield(stopping)

    async def create_plan(self, request: execution_pb2.SystemRequest) -> plan_pb2.ExecutionPlan:
        """Return the checked plan of a PLAN request without running it."""
        request_message = pb.CreatePlanRequest(request=request)
        return (await self._call(self._stub().CreatePlan, request_message)).plan

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Any, ResponseT],
        request: Any,
        timeout_s: float | None = None,
    ) -> ResponseT:
        """Make a unary call within `timeout_s`, or within the client's timeout if `timeout_s` is unset."""
        time_s = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(time_s + GRACE_S):
                return await call_unary(_SERVICE, method, request, time_s, credentials=self._credentials)
        except TimeoutError:
            raise no_answer(_SERVICE) from None

    def _patience_for(self, request: execution_pb2.SystemRequest, until_s: float) -> Patience:
        """Return the patience for a request. Without an id it is 0, because a resend would run the request again."""
        return Patience(self._patience_s if request.request_id else 0.0, until_s=until_s)

    def _time_for(self, request: execution_pb2.SystemRequest) -> float:
        """Return the timeout of a call, which exceeds the request's timeout so that the response can arrive."""
        timeout_s = timeout_of(request)
        if not timeout_s:
            return self._timeout_s
        return timeout_s + RESPONSE_GRACE_S

    def _stub(self) -> pb_grpc.OrchestratorServiceAsyncStub:
        return self._connections.current().orchestrator

    def _call_ingest(
        self, requests: AsyncIterator[context_service_pb2.IngestFilesRequest]
    ) -> AsyncGenerator[context_service_pb2.IngestFilesResponse, None]:
        return call_stream(_SERVICE, self._context_stub().IngestFiles, requests, credentials=self._credentials)

    def _context_stub(self) -> context_service_pb2_grpc.ContextServiceAsyncStub:
        return self._connections.current().context


def _left_s(until_s: float) -> float:
    """Return the time until a point of the monotonic clock, or a brief moment if that point has passed."""
    return max(0.001, until_s - time.monotonic())
