"""Routes calls of Infer to the replica that is likely to answer soonest, then to the next, then to any replica.

The part of an answer that the caller already has is recorded, so that another replica can continue the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from typing import TypeAlias

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.rpc.peer import Peer
from pagantic_common.rpc.waiting_line import Place, WaitingLine
from pagantic_common.telemetry.metrics import make_counter
from pagantic_common.telemetry.names import ORCHESTRATOR_REROUTED_CALLS
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.adapters.inference.replica_set import Replica, ReplicaSet
from services.orchestrator.core.routing.prefixes import BLOCK_BYTES, PromptPrefixes, prefixes_of
from services.orchestrator.core.routing.replicas import Call

BUSY_RETRY_S = 2.0
MAX_SURPRISES = 1  # maximum number of unannounced losses that an answer survives
MAX_LINES = 64  # Empty queues beyond this number are removed, because callers may name any model.

Response: TypeAlias = inference_service_pb2.InferResponse
Responses: TypeAlias = AsyncGenerator[inference_service_pb2.InferResponse, None]

rerouted_calls = make_counter(
    ORCHESTRATOR_REROUTED_CALLS, "Inferences that one replica did not take, so that another one was asked"
)


class PartialOutput:
    """The tokens and the text of an answer that the caller already has.

    A replica that continues the answer repeats this text, and `take` removes the repetition. Answers with several
    candidates, log-probabilities or tool calls cannot be continued.
    """

    def __init__(self, request: inference_service_pb2.InferRequest) -> None:
        self._request = request
        request.reports_tokens = True
        self._may_continue = request.candidate_count <= 1 and not request.HasField("top_logprobs")
        self._tokens: list[int] = []
        self._content = _Once()
        self._reasoning = _Once()

    def take(self, response: inference_service_pb2.InferResponse) -> inference_service_pb2.InferResponse:
        """Record a response, and return it without the text that the caller already has."""
        match response.WhichOneof("event"):
            case "started":
                self._request.sampling.seed = response.started.seed
            case "delta":
                delta = response.delta
                self._may_continue = self._may_continue and not delta.tool_calls
                self._tokens += delta.tokens
                delta.content = self._content.take(delta.content)
                delta.reasoning = self._reasoning.take(delta.reasoning)
            case _:
                self._may_continue = False
        return response

    def rest(self) -> inference_service_pb2.InferRequest | None:
        """Return the request for the remaining answer, or None if the answer cannot be continued."""
        has_said = self._content.size or self._reasoning.size
        if not self._may_continue or (has_said and not self._tokens):
            return None
        self._request.said_tokens[:] = self._tokens
        self._tokens.clear()
        self._content.repeat()
        self._reasoning.repeat()
        return self._request


class _Once:
    """A text that arrives in pieces and may restart from its beginning."""

    def __init__(self) -> None:
        self.size = 0
        self._position = 0

    def repeat(self) -> None:
        self._position = 0

    def take(self, piece: str) -> str:
        """Return the new part of the next piece."""
        overlap = max(0, self.size - self._position)
        self._position += len(piece)
        self.size = max(self.size, self._position)
        return piece[overlap:]


def _no_room(waiting: int) -> Overloaded:
    return Overloaded(
        f"{waiting} inferences wait for room in the inference service: send the request again later",
        code=ErrorCode.INFERENCE_OVERLOADED,
        retry_after_s=BUSY_RETRY_S,
    )


class RoutedCalls:
    """Sends calls of Infer to the service as a whole, or to individual replicas if there are several.

    Args:
        peer: The service behind one channel, which waits while the service starts.
        stub: The stub of the same channel.
        busy_patience_s: Maximum time that a call waits for capacity in the service.
        replicas: The replicas; if None, the channel chooses a replica.
    """

    def __init__(
        self,
        peer: Peer,
        stub: inference_service_pb2_grpc.InferenceServiceAsyncStub,
        busy_patience_s: float,
        replicas: ReplicaSet | None = None,
    ) -> None:
        self._peer = peer
        self._stub = stub
        self._busy_patience_s = busy_patience_s
        self._replicas = replicas
        self._lines: dict[tuple[str, str], WaitingLine] = {}

    @asynccontextmanager
    async def responses(self, request: inference_service_pb2.InferRequest) -> AsyncIterator[AsyncIterator[Response]]:
        """Call Infer and yield its responses. While the service is full, the call queues for at most `busy_patience_s`.

        If a replica is lost during an answer, another replica continues the answer if possible, without repeating text.
        """
        line = self._line_of(request.model)
        place = Place(line, ErrorCode.INFERENCE_OVERLOADED, self._busy_patience_s)
        waiting = len(line)
        if not await place.wait():
            raise _no_room(waiting)
        try:
            responses = await self._begin(request)
            if responses is None:  # The call waits for the service as a whole.
                responses = self._peer.call_stream(self._stub.Infer, request, place=place)
            async with aclosing(responses):
                yield responses
        finally:
            place.leave()

    def _line_of(self, model: str) -> WaitingLine:
        """Return the queue of a model and tenant. A call blocks only the calls in its own queue."""
        if len(self._lines) >= MAX_LINES:
            self._lines = {place: line for place, line in self._lines.items() if line}
        return self._lines.setdefault((model, current_principal().tenant), WaitingLine())

    async def _begin(self, request: inference_service_pb2.InferRequest) -> Responses | None:
        """Return the responses of the first replica that answers, or None if no replica accepts the call."""
        replicas = self._replicas
        if replicas is None or not replicas.has_choice:
            return None
        prefixes = _name_prefixes(request, replicas.secret)
        output = PartialOutput(request)
        begun = await _ask(replicas, prefixes, request, set())
        if begun is None:
            return None
        return self._answer(replicas, prefixes, output, *begun)

    async def _answer(
        self,
        replicas: ReplicaSet,
        prefixes: PromptPrefixes,
        said: PartialOutput,
        replica: Replica | None,
        responses: Responses,
    ) -> Responses:
        """Stream the responses of a replica. If the replica is lost, another replica continues the answer.

        The answer continues after any number of announced losses, but after at most `MAX_SURPRISES` unannounced
        losses, because the request itself may have caused them.
        """
        surprises = 0
        losses: list[Unavailable] = []
        while True:
            async with aclosing(_until_lost(said, responses, losses)) as part:
                async for response in part:
                    yield response
            if not losses:
                return
            lost = losses.pop()
            surprises += replica is None or not replica.is_leaving
            if surprises > MAX_SURPRISES:
                raise lost
            replica, responses = await self._continue(replicas, prefixes, said, replica, lost)

    async def _continue(
        self,
        replicas: ReplicaSet,
        prefixes: PromptPrefixes,
        said: PartialOutput,
        replica: Replica | None,
        lost: Unavailable,
    ) -> tuple[Replica | None, Responses]:
        """Return the responses of a replica that continues the answer, or starts it if no text was sent yet.

        Raises `lost` if the answer cannot be continued.
        """
        rest = said.rest()
        if rest is None:
            raise lost
        try:
            begun = await _ask(replicas, prefixes, rest, {replica.address} if replica else set())
        except InvalidRequest:  # The lost replica had already sent all text.
            raise lost from None
        return begun or (None, self._peer.call_stream(self._stub.Infer, rest))


async def _until_lost(said: PartialOutput, responses: Responses, losses: list[Unavailable]) -> Responses:
    """Stream the responses without the text already sent. If the replica is lost, append its error to `losses`."""
    try:
        async with aclosing(responses):
            async for response in responses:
                yield said.take(response)
    except Unavailable as lost:
        losses.append(lost)


async def _ask(
    replicas: ReplicaSet,
    prefixes: PromptPrefixes,
    request: inference_service_pb2.InferRequest,
    avoided: set[str],
) -> tuple[Replica, Responses] | None:
    """Return the first replica that answers, with its responses, or None if no replica accepts the call."""
    while (chosen := replicas.choose(prefixes, avoided)) is not None:
        responses = _call(replicas, *chosen, request)
        try:
            first = await anext(responses, None)
        except (Overloaded, Unavailable):
            rerouted_calls.add(1)
            avoided.add(chosen[0].address)
        else:
            return chosen[0], _chain(first, responses)
    return None


async def _call(
    replicas: ReplicaSet, replica: Replica, call: Call, request: inference_service_pb2.InferRequest
) -> Responses:
    async with _counted(replicas, call), aclosing(replica.peer.call_stream(replica.stub.Infer, request)) as responses:
        async for response in responses:
            if response.HasField("started"):
                replicas.start(call, response.started)
            yield response


async def _chain(first: Response | None, others: Responses) -> Responses:
    async with aclosing(others):
        if first is not None:
            yield first
        async for response in others:
            yield response


@asynccontextmanager
async def _counted(replicas: ReplicaSet, call: Call) -> AsyncIterator[None]:
    try:
        yield
    finally:
        replicas.end(call)


def _name_prefixes(request: inference_service_pb2.InferRequest, secret: bytes) -> PromptPrefixes:
    """Return the prefixes of a request's prompt, and add them to the request."""
    parts = [request.text.encode()]
    if request.HasField("chat"):
        # The tools come first, as in most templates, so that an additional turn leaves the preceding bytes unchanged.
        tools = (tool.SerializeToString(deterministic=True) for tool in request.chat.tools)
        parts = [*tools, *(_bytes_of(message) for message in request.chat.messages)]
    owner = f"{current_principal().tenant}\n{request.model}".encode()
    prefixes = prefixes_of(owner, secret, parts)
    request.prefixes.keys.extend(prefixes.keys)
    request.prefixes.block_bytes = BLOCK_BYTES
    request.prefixes.prompt_bytes = prefixes.size_bytes
    return prefixes


def _bytes_of(message: message_pb2.Message) -> bytes:
    """Encode a message without a length and with its text first, so that messages with a common prefix share bytes."""
    others = message_pb2.Message()
    others.CopyFrom(message)
    others.ClearField("content")
    for part in others.parts:
        if part.HasField("image"):  # The bytes of an image would outweigh all text.
            part.image.data = sha256(part.image.data).digest()
    return message.role.to_bytes(1, "big") + message.content.encode() + others.SerializeToString(deterministic=True)
