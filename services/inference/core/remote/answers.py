"""Turns the chunks of a remote engine's stream into the events of an inference.

Invariants:
    1. A candidate's deltas come before its end, and no event of the candidate comes after its end.
    2. The argument deltas of a call concatenate to the arguments of that call in the candidate's end.
    3. Every call in an end has the name of an offered tool, a JSON object and a unique id.
    4. A stream is complete only if every candidate ended.
    5. No end reports a satisfied constraint, because this service does not enforce constraints on remote engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage
from services.inference.core.generation import (
    CandidateEnd,
    ChatPrompt,
    Completed,
    Delta,
    FinishReason,
    InferenceRequest,
    TokenLogprob,
    ToolCallDelta,
)
from services.inference.core.prompts import offered_tools

MAX_CALLS = 128
_EMPTY_ARGUMENTS = "{}"
_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL,
    "function_call": FinishReason.TOOL,
}


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call as the engine sent it, with the engine's index."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Call:
    """A call as received so far. `source` is its first piece."""

    source: CallPiece
    id: str
    name: str = ""
    arguments: str = ""


class RemoteCalls:
    """Joins the streamed pieces of a candidate's tool calls, in the order of their first pieces.

    Args:
        tool_names: The tools that the model may call.
        new_call_id: Returns an id for a call whose own id is unusable.
    """

    def __init__(self, tool_names: Sequence[str], new_call_id: Callable[[], str]) -> None:
        self._tool_names = frozenset(tool_names)
        self._new_call_id = new_call_id
        self._calls: list[_Call] = []

    @property
    def are_whole(self) -> bool:
        """Whether every call names an offered tool and has a JSON object as its arguments."""
        return all(map(self._is_whole, self._calls))

    def whole(self) -> tuple[ToolCall, ...]:
        """Return the complete calls."""
        return tuple(ToolCall(call.id, call.name, call.arguments) for call in self._calls if self._is_whole(call))

    def add(self, piece: CallPiece) -> Iterator[ToolCallDelta]:
        """Add a piece, and yield its delta if the call names an offered tool.

        Raises Internal (INFERENCE_MALFORMED_RESPONSE) if there are more than 128 calls.
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
        """Add an empty object to calls without arguments, and yield the deltas."""
        for position, call in enumerate(self._calls):
            if not call.arguments.strip() and call.name in self._tool_names:
                call.arguments += _EMPTY_ARGUMENTS
                yield ToolCallDelta(position, arguments_json=_EMPTY_ARGUMENTS)

    def _position_of(self, piece: CallPiece) -> int:
        """Return the call that a piece belongs to.

        Some engines send several calls with the same index but different ids.
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
    """Return the error for an invalid message from an engine."""
    return Internal(f"the engine {problem}", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text, is_rewritable=True), dict)
    except JsonTextError:
        return False


@dataclass(frozen=True, slots=True)
class ChoicePiece:
    """The part of a chunk for one candidate. `finish_reason` is empty until the candidate's last piece."""

    index: int
    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """The engine's token counts so far."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of the engine's stream."""

    choices: tuple[ChoicePiece, ...] = ()
    counts: Counts | None = None


@dataclass(slots=True)
class _Candidate:
    calls: RemoteCalls
    tokens: int = 0
    reasoning_tokens: int = 0
    end: CandidateEnd | None = None
    is_cancelled: bool = False

    def count(self, piece: ChoicePiece) -> None:
        """Count the tokens of a piece: one per log-probability, and at least one token."""
        if not (piece.content or piece.reasoning or piece.calls):
            return
        tokens = max(1, len(piece.logprobs))
        self.tokens += tokens
        if piece.reasoning and not piece.content:
            self.reasoning_tokens += tokens


class RemoteAnswers:
    """The candidates of one inference. Feed the chunks in order, then call `finish`.

    Args:
        count: The number of candidates.
        tool_names: The tools that the model may call.
        is_enforced: Whether the model must call a tool.
        new_call_id: Returns an id for a call whose own id is unusable.
    """

    def __init__(
        self, count: int, tool_names: Sequence[str] = (), *, is_enforced: bool, new_call_id: Callable[[], str]
    ) -> None:
        self._candidates = [_Candidate(RemoteCalls(tool_names, new_call_id)) for _ in range(count)]
        self._is_enforced = is_enforced
        self.counts: Counts | None = None

    @property
    def have_ended(self) -> bool:
        """Whether every candidate has ended."""
        return all(candidate.end is not None for candidate in self._candidates)

    @property
    def are_cancelled(self) -> bool:
        """Whether every candidate was cancelled."""
        return all(candidate.is_cancelled for candidate in self._candidates)

    def cancel(self, index: int) -> None:
        """Cancel a candidate, which ends with the next chunk."""
        if self._candidates[index].end is None:
            self._candidates[index].is_cancelled = True

    def feed(self, chunk: Chunk) -> Iterator[Delta | CandidateEnd]:
        """Yield the events of a chunk.

        The end of a single candidate waits for `finish`, because the engine's count of its tokens comes last. Raises
        Internal (INFERENCE_MALFORMED_RESPONSE) if the chunk is invalid, and Internal (INFERENCE_ENGINE_ERROR) if a
        failure ended a candidate.
        """
        if chunk.counts is not None:
            self.counts = chunk.counts
        for index, candidate in enumerate(self._candidates):
            if candidate.is_cancelled and candidate.end is None:
                candidate.end = CandidateEnd(index, FinishReason.CANCELLED, candidate.tokens)
                yield candidate.end
        for piece in chunk.choices:
            if not 0 <= piece.index < len(self._candidates):
                raise malformed(f"answers candidate {piece.index} of {len(self._candidates)}")
            candidate = self._candidates[piece.index]
            if candidate.end is None:
                yield from self._take(candidate, piece)

    def finish(self, *, prompt_tokens: int, window: int, decode_seconds: float) -> Iterator[CandidateEnd | Completed]:
        """Yield the last events. `prompt_tokens` is used if the engine sent no counts.

        Raises Internal (INFERENCE_MALFORMED_RESPONSE) if a candidate has not ended.
        """
        for index, candidate in enumerate(self._candidates):
            if candidate.end is None:
                raise malformed(f"ended its stream before candidate {index} of {len(self._candidates)}")
        usage = self._usage(prompt_tokens, window, decode_seconds)
        if (only := self._only_end()) is not None:
            yield CandidateEnd(0, only.finish_reason, usage.output_tokens, only.tool_calls)
        yield Completed(usage, usage.prompt_tokens - usage.cached_prompt_tokens + usage.output_tokens)

    def _only_end(self) -> CandidateEnd | None:
        """Return the delayed end of a single candidate, which `finish` must yield, or None if there is no such end."""
        only = self._candidates[0]
        if len(self._candidates) > 1 or only.is_cancelled:
            return None
        return only.end

    def _usage(self, prompt_tokens: int, window: int, decode_seconds: float) -> TokenUsage:
        longest = max(candidate.tokens for candidate in self._candidates)
        output = sum(candidate.tokens for candidate in self._candidates)
        counts = self.counts or Counts(
            prompt_tokens, output, 0, sum(candidate.reasoning_tokens for candidate in self._candidates)
        )
        if len(self._candidates) == 1:
            longest = output = counts.output_tokens
        output = max(output, counts.output_tokens)  # some engines count the tokens of only one candidate
        return TokenUsage(
            prompt_tokens=counts.prompt_tokens,
            cached_prompt_tokens=min(counts.cached_prompt_tokens, counts.prompt_tokens),
            reasoning_tokens=counts.reasoning_tokens,
            output_tokens=output,
            context_tokens=counts.prompt_tokens + longest,
            context_window=window,
            decode_seconds=decode_seconds,
        )

    def _take(self, candidate: _Candidate, piece: ChoicePiece) -> Iterator[Delta | CandidateEnd]:
        calls = tuple(delta for call in piece.calls for delta in candidate.calls.add(call))
        candidate.count(piece)
        delta = Delta(piece.index, piece.content, piece.reasoning, calls, piece.logprobs)
        if delta != Delta(piece.index):
            yield replace(delta, output_tokens=candidate.tokens)
        if not piece.finish_reason:
            return
        if filled := tuple(candidate.calls.fill()):
            yield Delta(piece.index, tool_calls=filled, output_tokens=candidate.tokens)
        candidate.end = self._end(piece.index, candidate, piece.finish_reason)
        if len(self._candidates) > 1:
            yield candidate.end

    def _end(self, index: int, candidate: _Candidate, reason: str) -> CandidateEnd:
        finish_reason = _FINISH_REASONS.get(reason)
        if finish_reason is None:
            raise Internal(f"the engine ended its answer by {reason[:40]!r}", code=ErrorCode.INFERENCE_ENGINE_ERROR)
        calls, is_cut = candidate.calls.whole(), finish_reason is FinishReason.LENGTH
        if not candidate.calls.are_whole and not is_cut:
            raise malformed("asks for a tool call that is not JSON, or of a tool that was not offered")
        if not calls and not is_cut and (self._is_enforced or finish_reason is FinishReason.TOOL):
            raise malformed("gives no tool call where there should be one")
        if calls and candidate.calls.are_whole:
            finish_reason = FinishReason.TOOL
        return CandidateEnd(index, finish_reason, candidate.tokens, calls)


def answers_to(request: InferenceRequest, new_call_id: Callable[[], str]) -> RemoteAnswers:
    """Return the RemoteAnswers that collect the answers to a request."""
    names: tuple[str, ...] = ()
    is_enforced = False
    if isinstance(request.prompt, ChatPrompt):
        choice = request.prompt.tool_choice
        names = tuple(tool.name for tool in offered_tools(request.prompt.tools, choice))
        is_enforced = choice.is_enforced
    return RemoteAnswers(request.candidate_count, names, is_enforced=is_enforced, new_call_id=new_call_id)
