"""Divides a streamed answer into blocks of reasoning, text and calls.

The module is pure: it turns events into moves, each of which begins, extends or ends a block. The stream translations
share this module: each expresses a move in the form of its API.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AnswerState, Delta, DeltaKind
from pagantic_common.domain.errors import Aborted


class BlockKind(Enum):
    """The kind of content in a block."""

    REASONING = auto()
    TEXT = auto()
    CALL = auto()


class Step(Enum):
    """The kinds of changes to a block."""

    BEGIN = auto()
    GROW = auto()
    END = auto()


@dataclass(slots=True)
class Block:
    """A block with the pieces of its text so far. The text of a call is its arguments.

    `index` is the block's position among all blocks of the answer, and `number` among the blocks of its kind.
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


_KINDS = {
    DeltaKind.REASONING: BlockKind.REASONING,
    DeltaKind.TEXT: BlockKind.TEXT,
    DeltaKind.CALL: BlockKind.CALL,
}
Move = tuple[Step, Block, str]  # GROW moves contain new text; the text of other moves is empty.


class Blocks:
    """The blocks of an answer in order. Only one block is open at a time.

    Args:
    has_calls: Whether calls of client tools become blocks; false for a stream that sends each call as a whole.
    """

    def __init__(self, *, has_calls: bool = True) -> None:
        self._has_calls = has_calls
        self._state = AnswerState()
        self._blocks: list[Block] = []
        self._open: Block | None = None

    @property
    def all(self) -> Sequence[Block]:
        """The blocks so far, in order."""
        return self._blocks

    @property
    def response(self) -> execution_pb2.SystemResponse | None:
        """The response, or None until the execution has ended."""
        return self._state.response

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[Move]:
        """Yield the moves for an event.

        Raises Aborted if an attempt is discarded after the client received some of its text.
        """
        return self._moves(self._state.take(event))

    def rest(self, text: str) -> Iterator[Move]:
        """Yield the moves that complete the blocks with the rest of the response's text, and end the last block.

        Raises Aborted if the response's text differs from the text that the client received.
        """
        yield from self._moves(rest_of(self._state, text))
        yield from self._end()

    def _moves(self, deltas: Iterable[Delta]) -> Iterator[Move]:
        for delta in deltas:
            if delta.is_void:
                if self._blocks:
                    raise discarded_after_sending(delta)
                continue
            kind = _KINDS[delta.kind]
            if kind is BlockKind.CALL and not self._has_calls:
                continue
            if delta.name:
                yield from self._begin(kind, delta.call_id, delta.name)
            yield from self._grow(kind, delta.text)

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


def rest_of(state: AnswerState, text: str) -> Sequence[Delta]:
    """Return the deltas that complete a streamed answer.

    Raises Aborted if the answer's text was changed, for example by a repair, after the client received some of it.
    White space around the text is ignored. A failed response is not compared, because its failure ends the stream.

    Args:
    state: The state of an answer that has ended.
    text: The whole text of the answer.
    """
    streamed, response = state.streamed_text, state.response
    words = streamed.lstrip()
    start = text.find(words)
    is_continued = start == len(text) - len(text.lstrip())
    # A reader who joined after calls of the deployment's tools did not receive the texts around these calls.
    has_joined_late = start > 0 and response is not None and bool(response.earlier_content)
    if text.startswith(streamed):
        return state.rest(text)
    if is_continued or has_joined_late:
        return state.rest(streamed + text[start + len(words) :])
    if text.strip() == streamed.strip() or (response is not None and response.HasField("error")):
        return state.rest(streamed)
    raise Aborted("the text was repaired after it was sent: send the request again, or without stream")


def discarded_after_sending(void: Delta) -> Aborted:
    """Return the error for texts that were discarded after they were sent."""
    discarded = "an inference"
    if void.kind is DeltaKind.DISCARDED:
        discarded = f"attempt {void.index}"
    return Aborted(
        f"{discarded} was discarded after its text was sent: {void.text}: send the request again, or without stream"
    )
