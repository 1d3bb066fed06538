"""A client of pagantic over gRPC: `python client.py COMMAND [TEXT]`. Without arguments it lists the commands.

For Python programs, `pagantic_common.client` is more convenient. This program shows the messages, and needs only the
proto files of this repository. README.md explains how to generate its stubs.
"""

import ipaddress
import json
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2, orchestrator_service_pb2_grpc
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2

USAGE = """usage: client COMMAND [TEXT]
  chat TEXT     stream the answer to a text
  extract TEXT  get a person's name and age out of a text, as JSON that satisfies a schema
  vote TEXT     have five samples vote how severe an incident is
  resume TEXT   drop the connection in the middle of an answer, and go on where it broke off
  cancel TEXT   begin a long answer, cancel it, and see that it has stopped
  error         make two requests that fail, and say how
environment: PAGANTIC_ADDRESS (localhost:50051, or https://host:port), PAGANTIC_API_KEY, PAGANTIC_TLS_CA_FILE,
  PAGANTIC_TIMEOUT_S (120)"""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
INCIDENT = {
    "type": "object",
    "properties": {"severity": {"enum": ["low", "medium", "high"]}},
    "required": ["severity"],
    "additionalProperties": False,
}
ANSWER_TOKENS, LONG_ANSWER_TOKENS = 80, 1000
# The demos drop the connection or cancel the execution after this many pieces of text.
ENOUGH_PIECES = 5
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
# The exit codes of the `pagantic` command.
EXIT_FAILED, EXIT_USAGE, EXIT_REQUEST, EXIT_OUTPUT, EXIT_UNAVAILABLE, EXIT_CANCELLED = 1, 2, 3, 6, 7, 8
EXIT_OF_CODE = {"INFERENCE_OUTPUT_TRUNCATED": EXIT_OUTPUT}
EXIT_OF_CODE |= dict.fromkeys(("QUOTA_RATE", "QUOTA_CONCURRENCY", "CONFIG_SOURCE_UNAVAILABLE"), EXIT_UNAVAILABLE)
EXIT_OF_CATEGORY = {
    "INFERENCE_FAILURE": 4,
    "TOOL_FAILURE": 5,
    "CONSTRAINT_FAILURE": EXIT_OUTPUT,
    "VALIDATION_FAILURE": EXIT_OUTPUT,
    "ORCHESTRATION_FAILURE": EXIT_UNAVAILABLE,
    "CONFIGURATION_FAILURE": EXIT_REQUEST,
    "CANCELLATION": EXIT_CANCELLED,
    "ACCESS_FAILURE": EXIT_REQUEST,
}
EXIT_OF_STATUS = dict.fromkeys(("UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"), EXIT_UNAVAILABLE)
EXIT_OF_STATUS |= dict.fromkeys(("DEADLINE_EXCEEDED", "CANCELLED"), EXIT_CANCELLED)
EXIT_OF_STATUS |= dict.fromkeys(("INTERNAL", "UNKNOWN"), EXIT_FAILED)


def printable(text: str) -> str:
    """Return the text without control characters, so that a model's answer cannot steer the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text)


def note(text: str) -> None:
    """Print a message for the user on stderr, separate from the answer."""
    sys.stderr.write(printable(text) + "\n")


class Failure(Exception):
    """A failed request: a status with its details, or the error of a response."""

    def __init__(
        self,
        source: str,
        name: str,
        message: str,
        described: error_pb2.SystemError | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.source = source
        self.name = name
        self.message = message
        self.described = described
        self.retry_after_s = retry_after_s

    @classmethod
    def of_status(cls, error: grpc.RpcError) -> Self:
        """Decode the details of a status. ErrorInfo names the failure, and SystemError describes it."""
        name, message, described, retry_after_s = error.code().name, error.details() or "", None, None
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            info, system, retry = error_details_pb2.ErrorInfo(), error_pb2.SystemError(), error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                name = info.reason
            elif detail.Unpack(system):
                described, message = system, system.message
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        return cls(f"status {error.code().name}", name, message, described, retry_after_s)

    @classmethod
    def of_response(cls, error: error_pb2.SystemError) -> Self:
        """Return the failure for the error of a response."""
        name = error_pb2.ErrorCode.Name(error.code).removeprefix("ERROR_CODE_")
        return cls("response", name, error.message, error)

    @property
    def category(self) -> str:
        """The part of the system that caused the error, or an empty string if it is unknown."""
        if self.described is None or not self.described.category:
            return ""
        return error_pb2.ErrorCategory.Name(self.described.category).removeprefix("ERROR_CATEGORY_")

    @property
    def exit_code(self) -> int:
        """The exit code of the program."""
        status = self.source.removeprefix("status ")
        by_category = EXIT_OF_CATEGORY.get(self.category) or EXIT_OF_STATUS.get(status, EXIT_REQUEST)
        return EXIT_OF_CODE.get(self.name, by_category)

    def show(self) -> None:
        """Print the error, its source, and the next step."""
        note(f"error: {self.name}")
        note(f"from: {self.source}")
        if self.category:
            note(f"category: {self.category}")
        note(f"message: {self.message}")
        if self.described:
            note(f"retryable: {'yes' if self.described.retryable else 'no'}")
        if self.retry_after_s is not None:
            note(f"retry after: {self.retry_after_s:.1f} s")


class StreamEnded(grpc.RpcError):
    """A stream that ended before its execution did. It has no status and counts as a lost connection."""

    def code(self) -> grpc.StatusCode:
        """Return the status code of a lost connection."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Return the description of the failure."""
        return "the stream ended before its execution"

    def trailing_metadata(self) -> tuple[()]:
        """Return an empty tuple, because there are no status details."""
        return ()


class Connection:
    """The channel to an orchestrator, its stub, and the credentials of each call."""

    def __init__(self) -> None:
        self.address = os.environ.get("PAGANTIC_ADDRESS") or "localhost:50051"
        if not target_of(self.address).hostname:
            raise ValueError("PAGANTIC_ADDRESS has no host: call host:port or https://host:port")
        self.timeout_s = float(os.environ.get("PAGANTIC_TIMEOUT_S") or 120)
        key = os.environ.get("PAGANTIC_API_KEY", "").strip()
        self.metadata = [("authorization", f"Bearer {key}")] if key else []
        if key and not self.address.startswith("https://") and not is_loopback(self.address):
            raise ValueError("the API key would travel in plain text: call https://host:port")
        self.open()

    def open(self) -> None:
        """Open the channel. gRPC connects with the first call."""
        target = target_of(self.address)
        if target.scheme == "https":
            file = os.environ.get("PAGANTIC_TLS_CA_FILE")
            credentials = grpc.ssl_channel_credentials(Path(file).read_bytes() if file else None)
            self.channel = grpc.secure_channel(target.netloc if target.port else f"{target.netloc}:443", credentials)
        else:
            self.channel = grpc.insecure_channel(target.netloc)
        self.stub = orchestrator_service_pb2_grpc.OrchestratorServiceStub(self.channel)

    def drop(self) -> None:
        """Close the connection with all calls on it, and open a new connection."""
        self.channel.close()
        self.open()

    def options(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the common arguments of all calls: the deadline and the credentials."""
        return {"timeout": self.timeout_s if timeout_s is None else timeout_s, "metadata": self.metadata}


def target_of(address: str) -> SplitResult:
    """Split an address into its parts."""
    return urlsplit(address if "://" in address else f"http://{address}")


def is_loopback(address: str) -> bool:
    """Return whether only this machine can read the traffic to an address."""
    host = target_of(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_request(
    mode: execution_pb2.Mode.ValueType, text: str, *, max_tokens: int, **more: Any
) -> execution_pb2.SystemRequest:
    """Return a request with its own id, which is needed to cancel, follow or resend the request."""
    request = execution_pb2.SystemRequest(
        request_id=str(uuid.uuid4()),
        mode=mode,
        messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content=text)],
        hints=execution_pb2.ExecutionHints(max_tokens=max_tokens),
        **more,
    )
    note(f"request: {request.request_id}")
    return request


def make_chat(text: str, *, max_tokens: int = ANSWER_TOKENS, **more: Any) -> execution_pb2.SystemRequest:
    """Return a chat request without tools, whose answer is a single text."""
    request = make_request(execution_pb2.MODE_CHAT, text, max_tokens=max_tokens, **more)
    request.hints.tool_choice.mode = message_pb2.TOOL_CHOICE_MODE_NONE
    return request


def checked(response: execution_pb2.SystemResponse | None) -> execution_pb2.SystemResponse:
    """Return the response if it succeeded. Raises StreamEnded if it is missing, or Failure if it contains an error."""
    if response is None:
        raise StreamEnded
    if response.HasField("error"):
        raise Failure.of_response(response.error)
    return response


class Answer:
    """The text of a streamed answer, and the part of it that is already on the terminal."""

    def __init__(self) -> None:
        self.response: execution_pb2.SystemResponse | None = None
        self.sequence = 0
        self.pieces = 0
        self._text = ""
        self._shown = ""
        self._stored = 0

    def take(self, event: event_pb2.ExecutionEvent) -> None:
        """Read an event, and show any text in it."""
        if event.sequence > self.sequence:  # Deltas repeat the sequence of the stored event before them.
            self.sequence = event.sequence
            self._stored = len(self._text)
        kind = event.WhichOneof("event")
        if kind == "content_delta":
            self._text += event.content_delta.text
            self.pieces += 1
        elif kind == "attempt_discarded":
            self._text = ""
            self._stored = 0
        elif kind == "completed":
            self.response = event.completed.response
            self._text = self.response.content
        self._show()

    def rewind(self) -> None:
        """Discard the text after the last stored event, because following from that event sends the text again."""
        self._text = self._text[: self._stored]

    def _show(self) -> None:
        if self._shown.startswith(self._text):
            return
        new = self._text.removeprefix(self._shown)
        if not self._text.startswith(self._shown):
            new = "\n" + self._text
        sys.stdout.write(printable(new))
        sys.stdout.flush()
        self._shown = self._text


def chat(connection: Connection, text: str) -> None:
    """Stream the answer to a text, and print it as it arrives."""
    answer = Answer()
    for event in connection.stub.ExecuteStream(make_chat(text), **connection.options()):
        answer.take(event)
    sys.stdout.write("\n")
    response = checked(answer.response)
    reason = generation_pb2.FinishReason.Name(response.finish_reason).removeprefix("FINISH_REASON_")
    note(f"finished: {reason}, {response.token_usage.output_tokens} tokens")


def extract(connection: Connection, text: str) -> None:
    """Print JSON that satisfies a schema."""
    contract = contract_pb2.OutputContract(schema_json=json.dumps(PERSON))
    request = make_request(execution_pb2.MODE_STRUCTURED, text, max_tokens=100, output=contract)
    response = checked(connection.stub.Execute(request, **connection.options()))
    sys.stdout.write(printable(response.structured_output_json) + "\n")
    guarantee = contract_pb2.Guarantee.Name(response.validation.guarantee).removeprefix("GUARANTEE_")
    note(f"guarantee: {guarantee}")


def vote(connection: Connection, text: str) -> None:
    """Print the label that most samples chose, and its share of the samples."""
    contract = contract_pb2.OutputContract(schema_json=json.dumps(INCIDENT))
    voting = execution_pb2.Voting(n=5)
    request = make_request(execution_pb2.MODE_REDUNDANT, text, max_tokens=40, output=contract, voting=voting)
    response = checked(connection.stub.Execute(request, **connection.options()))
    label = json.loads(response.structured_output_json)["severity"]
    sys.stdout.write(f"label: {label}\nconfidence: {response.confidence:.2f}\n")


def resume(connection: Connection, text: str) -> None:
    """Stream an answer over a connection that breaks.

    A background request continues after its caller disconnects. A returning caller follows the request from the last
    event that it received.
    """
    request = make_chat(text, background=True)
    request.hints.timeout.FromMilliseconds(round(connection.timeout_s * 1000))  # The call's deadline does not limit it.
    ends_at = time.monotonic() + connection.timeout_s
    answer, wait_s = Answer(), FIRST_WAIT_S
    while answer.response is None:
        begun = answer.sequence
        try:
            read_until_drop(connection, begin_or_follow(connection, request, begun, ends_at - time.monotonic()), answer)
        except grpc.RpcError as error:
            if answer.sequence > begun:
                wait_s = FIRST_WAIT_S
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() + wait_s > ends_at:
                raise
            note(f"\nlost: after event {answer.sequence}")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        answer.rewind()
    sys.stdout.write("\n")
    checked(answer.response)


def read_until_drop(connection: Connection, events: Iterator[event_pb2.ExecutionEvent], answer: Answer) -> None:
    """Read events until the stream ends, dropping the connection once after some pieces of text."""
    for event in events:
        answer.take(event)
        if event.HasField("content_delta") and answer.pieces == ENOUGH_PIECES:
            note(f"\ndropped: after event {answer.sequence}")
            connection.drop()
            return
    if answer.response is None:
        raise StreamEnded


def begin_or_follow(
    connection: Connection, request: execution_pb2.SystemRequest, sequence: int, timeout_s: float
) -> Iterator[event_pb2.ExecutionEvent]:
    """Return the stream of a request, beginning the request if no event has arrived.

    A request with the same id runs only once.
    """
    if not sequence:
        return connection.stub.ExecuteStream(request, **connection.options(timeout_s))
    note(f"follows: event {sequence}")
    following = orchestrator_pb2.FollowExecutionRequest(request_id=request.request_id, after_sequence=sequence)
    return connection.stub.FollowExecution(following, **connection.options(timeout_s))


def cancel(connection: Connection, text: str) -> None:
    """Begin a long answer and cancel it. Leaving the stream would also cancel it."""
    request = make_chat(text, max_tokens=LONG_ANSWER_TOKENS)
    pieces, response = 0, execution_pb2.SystemResponse()
    for event in connection.stub.ExecuteStream(request, **connection.options()):
        if event.HasField("completed"):
            response = event.completed.response
        pieces += event.HasField("content_delta")
        if event.HasField("content_delta") and pieces == ENOUGH_PIECES:
            cancelling = orchestrator_pb2.CancelExecutionRequest(request_id=request.request_id)
            connection.stub.CancelExecution(cancelling, **connection.options())
    looking = orchestrator_pb2.GetExecutionRequest(request_id=request.request_id)
    execution = connection.stub.GetExecution(looking, **connection.options()).execution
    state = execution_pb2.LifecycleState.Name(execution.state.current).removeprefix("LIFECYCLE_STATE_")
    code = error_pb2.ErrorCode.Name(response.error.code).removeprefix("ERROR_CODE_")
    sys.stdout.write(
        f"state: {state}\nerror: {code}\noutput tokens: {response.token_usage.output_tokens} of {LONG_ANSWER_TOKENS}\n"
    )


def error(connection: Connection, _text: str) -> None:
    """Make two failing requests. The first is rejected with a status, and the second has a response with an error."""
    refused = make_chat("Hello", max_tokens=8)
    refused.hints.temperature = 9
    try:
        connection.stub.Execute(refused, **connection.options())
    except grpc.RpcError as status:
        Failure.of_status(status).show()
    without_schema = make_request(execution_pb2.MODE_STRUCTURED, "Hello", max_tokens=8)
    checked(connection.stub.Execute(without_schema, **connection.options()))


COMMANDS = {"chat": chat, "extract": extract, "vote": vote, "resume": resume, "cancel": cancel, "error": error}


def main(arguments: list[str]) -> int:
    """Run a command and return the exit code."""
    name, *texts = arguments or [""]
    if name not in COMMANDS or len(texts) != (name != "error"):
        note(USAGE)
        return EXIT_USAGE
    try:
        connection = Connection()
    except (OSError, ValueError) as wrong:
        note(f"client: {wrong}")
        return EXIT_USAGE
    try:
        COMMANDS[name](connection, *(texts or [""]))
    except grpc.RpcError as status:
        failure = Failure.of_status(status)
    except Failure as failed:
        failure = failed
    else:
        return 0
    finally:
        connection.channel.close()
    failure.show()
    return failure.exit_code


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # If the output's reader is gone, the program ends without an error.
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
