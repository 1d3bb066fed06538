"""The blocks of an answer: reasoning, text and calls, as an execution streams them. Pure: events in, moves out.

The translations of streams share it: each says a move in the words of its API.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.domain.errors import Aborted


class BlockKind(Enum):
    """The content of a block."""

    REASONING = auto()
    TEXT = auto()
    CALL = auto()


class Step(Enum):
    """The changes of a block."""

    BEGIN = auto()
    GROW = auto()
    END = auto()


@dataclass(slots=True)
class Block:
    """A block, with the pieces of its text so far; the text of a call is its arguments.

    `index` is its place among all blocks of the answer, `number` its place among the blocks of its kind.
    """

    kind: BlockKind
    index: int
    number: int
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


Move = tuple[Step, Block, str]  # The text is new in a block that grows, and empty in other moves.


class Blocks:
    """The blocks of an answer, in their order; a single block at a time is open."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._open: Block | None = None

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[Move]:
        """Yield the moves of an event.

        Raises Aborted for a discarded attempt if the client already has some of its text.
        """
        match event.WhichOneof("event"):
            case "reasoning_delta":
                yield from self._grow(BlockKind.REASONING, event.reasoning_delta.text)
            case "content_delta":
                yield from self._grow(BlockKind.TEXT, event.content_delta.text)
            case "tool_call_delta":
                delta = event.tool_call_delta
                if delta.name:
                    yield from self._begin(BlockKind.CALL, delta.id, delta.name)
                yield from self._grow(BlockKind.CALL, delta.arguments_json)
            case "attempt_discarded" if self._blocks:
                raise discarded_after_sending(event.attempt_discarded)

    def rest(self, reasoning: str, text: str, calls: Sequence[message_pb2.ToolCall]) -> Iterator[Move]:
        """Yield the moves that complete the blocks to a whole answer, and end the last block.

        A stored answer comes without deltas. A repaired text stays as it was sent.
        """
        yield from self._rest_of(BlockKind.REASONING, reasoning)
        yield from self._rest_of(BlockKind.TEXT, text)
        yield from self._rest_of_calls(calls)
        yield from self._end()

    def _rest_of(self, kind: BlockKind, text: str) -> Iterator[Move]:
        sent = "".join(block.text for block in self._of_kind(kind))
        if text.startswith(sent):
            yield from self._grow(kind, text[len(sent) :])

    def _rest_of_calls(self, calls: Sequence[message_pb2.ToolCall]) -> Iterator[Move]:
        sent = self._of_kind(BlockKind.CALL)
        if sent and sent[-1] is self._open and len(sent) <= len(calls):
            yield from self._grow(BlockKind.CALL, calls[len(sent) - 1].arguments_json[len(sent[-1].text) :])
        for call in calls[len(sent) :]:
            yield from self._begin(BlockKind.CALL, call.id, call.name)
            yield from self._grow(BlockKind.CALL, call.arguments_json)

    def _of_kind(self, kind: BlockKind) -> list[Block]:
        return [block for block in self._blocks if block.kind is kind]

    def _grow(self, kind: BlockKind, text: str) -> Iterator[Move]:
        if not text:
            return
        block = self._open
        if block is None or block.kind is not kind:
            block = yield from self._begin(kind)
        block.pieces.append(text)
        yield Step.GROW, block, text

    def _begin(self, kind: BlockKind, call_id: str = "", name: str = "") -> Generator[Move, None, Block]:
        yield from self._end()
        block = Block(kind, len(self._blocks), len(self._of_kind(kind)), call_id, name)
        self._blocks.append(block)
        self._open = block
        yield Step.BEGIN, block, ""
        return block

    def _end(self) -> Iterator[Move]:
        block, self._open = self._open, None
        if block is not None:
            yield Step.END, block, ""


def discarded_after_sending(discarded: event_pb2.AttemptDiscarded) -> Aborted:
    """Return the error of an attempt that is discarded after its text was sent."""
    return Aborted(
        f"attempt {discarded.attempt} was discarded after its text was sent: {discarded.reason}: "
        "send the request again, or without stream"
    )
