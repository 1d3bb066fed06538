"""What an engine sends by its protocol. The tests of failures run for each `EngineProtocol` of theirs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from tests.support.engine_server import DONE, call_piece, choice, ended, event, refusal


@dataclass(frozen=True)
class EngineProtocol:
    """The messages of a protocol.

    Attributes:
        name: Its name in the ids of tests.
        path: The end of the API's address.
        stream_type: The content type of a stream.
        piece: Return a part of a stream, from a piece of the answer's text.
        call: Return a part of a stream with a tool call, from the tool's name and the arguments as JSON.
        ended: Return the last parts of a stream, which count 7 output tokens, from a finish reason.
        error: Return a part of a stream that reports a failure, from its message.
        refusal: Return a response, from its status, a message, and headers.
        malformed: Streams of another form, each with a part of the error's message.
        quiet: A part of a stream that has nothing and keeps the connection open; empty if there is no such part.
        settings: Fields of the remote model that select the protocol.
    """

    name: str
    path: str
    stream_type: str
    piece: Callable[[str], str]
    call: Callable[[str, str], str]
    ended: Callable[[str], list[str]]
    error: Callable[[str], str]
    refusal: Callable[..., Response]
    malformed: tuple[tuple[list[Any], str], ...]
    quiet: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


OPENAI = EngineProtocol(
    name="openai",
    path="/v1",
    stream_type="text/event-stream",
    piece=lambda text: choice(content=text),
    call=lambda name, arguments: call_piece(0, "c", name, arguments),
    ended=ended,
    error=lambda message: event({"error": {"message": message, "code": 500}}),
    refusal=refusal,
    malformed=(
        ([event({"choices": "no"})], "cannot be read"),
        (["data: {not json\n\n"], "cannot be read"),
        ([b"data: \xff\xfe\n\n"], "cannot be read"),
        (["data: " + "[" * 100_000 + "\n\n"], "cannot be read"),
        ([choice(index=1, content="x")], "candidate 1 of 1"),
        ([choice(index=-1, content="x")], "candidate -1 of 1"),
        ([choice(content="a"), DONE], "ended its stream before candidate 0"),
        (["hello, I am no stream"], "ended its stream before"),
    ),
    quiet=": ping\n\n",
)
