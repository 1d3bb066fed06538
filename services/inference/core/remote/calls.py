"""Joins the pieces of the tool calls that a remote engine streams for one candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.inference.core.generation import ToolCallDelta

MAX_CALLS = 128
_EMPTY_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call, as the engine sent it; `index` is the engine's."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Call:
    """A call so far; `source` is the piece that began it."""

    source: CallPiece
    id: str
    name: str = ""
    arguments: str = ""


class RemoteCalls:
    """The calls of one candidate, in the order in which they began.

    Args:
        tool_names: The tools that the model may call.
        new_call_id: Makes the id of a call whose own id cannot be used.
    """

    def __init__(self, tool_names: Sequence[str], new_call_id: Callable[[], str]) -> None:
        self._tool_names = frozenset(tool_names)
        self._new_call_id = new_call_id
        self._calls: list[_Call] = []

    @property
    def are_whole(self) -> bool:
        """Whether every call names an offered tool and has a JSON object."""
        return all(map(self._is_whole, self._calls))

    def whole(self) -> tuple[ToolCall, ...]:
        """Return the whole calls."""
        return tuple(ToolCall(call.id, call.name, call.arguments) for call in self._calls if self._is_whole(call))

    def add(self, piece: CallPiece) -> Iterator[ToolCallDelta]:
        """Add a piece, and yield what is new of a call of an offered tool.

        Raises Internal (INFERENCE_MALFORMED_RESPONSE) for more than 128 calls.
        """
        position = self._position_of(piece)
        call = self._calls[position]
        is_first = not call.name
        call.name = call.name or piece.name
        call.arguments += piece.arguments
        if call.name not in self._tool_names:
            return
        if is_first:
            yield ToolCallDelta(position, call.id, call.name, call.arguments)
        elif piece.arguments:
            yield ToolCallDelta(position, arguments_json=piece.arguments)

    def fill(self) -> Iterator[ToolCallDelta]:
        """Give an empty object to the calls that came without arguments, and yield that."""
        for position, call in enumerate(self._calls):
            if not call.arguments.strip() and call.name in self._tool_names:
                call.arguments += _EMPTY_ARGUMENTS
                yield ToolCallDelta(position, arguments_json=_EMPTY_ARGUMENTS)

    def _position_of(self, piece: CallPiece) -> int:
        """Return the call that a piece belongs to.

        Some engines give several calls one index, and tell them apart by their ids alone.
        """
        for position in reversed(range(len(self._calls))):
            source = self._calls[position].source
            if source.index == piece.index:
                begins_another = piece.name and piece.id and piece.id != source.id
                return self._begin(piece) if begins_another else position
        return self._begin(piece)

    def _begin(self, piece: CallPiece) -> int:
        if len(self._calls) == MAX_CALLS:
            raise malformed(f"asks for more than {MAX_CALLS} tool calls at once")
        call_id = piece.id
        if not is_id(call_id) or call_id in {call.id for call in self._calls}:
            call_id = self._new_call_id()
        self._calls.append(_Call(piece, call_id))
        return len(self._calls) - 1

    def _is_whole(self, call: _Call) -> bool:
        return call.name in self._tool_names and _is_object(call.arguments)


def malformed(problem: str) -> Internal:
    """Return the error for what an engine must not send."""
    return Internal(f"the engine {problem}", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text, is_rewritable=True), dict)
    except JsonTextError:
        return False
