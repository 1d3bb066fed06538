"""Responses of the orchestrator in the form of `/v1/completions`, whole and as chunks. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.http.openai.answers import Heading, completed, extension_of, finish_reason_of, text_of, usage_of
from gateway.http.streams.blocks import BlockKind, Blocks, Move, Step
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2

ID_PREFIX = "cmpl-"
_KIND = "text_completion"


@dataclass(frozen=True, slots=True)
class ContinuationHead:
    """The common parts of a whole answer and its chunks.

    Args:
        heading: Heading of the answer.
        echoes: The text at the beginning of each choice: its prompt, or nothing.
        ignored: Fields of the request without effect.
    """

    heading: Heading
    echoes: Sequence[str]
    ignored: Sequence[str]

    def whole(self, responses: Sequence[execution_pb2.SystemResponse]) -> dict[str, Any]:
        """Return the whole answer of the responses, a choice for each."""
        choices = [
            _choice(index, echo + text_of(response), response)
            for index, (echo, response) in enumerate(zip(self.echoes, responses, strict=True))
        ]
        return {
            **self._with(choices),
            "usage": usage_of(responses),
            "pagantic": extension_of(responses, self.ignored),
        }

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """Return the chunk with the next text of a choice."""
        return self._with([{"index": index, "text": text, "logprobs": None, "finish_reason": None}])

    def ending(self, index: int, response: execution_pb2.SystemResponse) -> dict[str, Any]:
        """Return the chunk that ends a choice."""
        return {**self._with([_choice(index, "", response)]), "pagantic": extension_of([response], self.ignored)}

    def usage(self, responses: Sequence[execution_pb2.SystemResponse]) -> dict[str, Any]:
        """Return the chunk with the usage of all choices, which ends a stream if the client requested it."""
        return {**self._with([]), "usage": usage_of(responses)}

    def _with(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self.heading.of(_KIND), "choices": list(choices)}


class ContinuationChunks:
    """The chunks of a choice, in the order of its events."""

    def __init__(self, head: ContinuationHead, index: int) -> None:
        self._head = head
        self._index = index
        self._blocks = Blocks()
        self.response: execution_pb2.SystemResponse | None = None

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the chunk with the prompt, where the client wants it back."""
        if echo := self._head.echoes[self._index]:
            yield self._head.piece(self._index, echo)

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an event.

        Raises the error of a response, and Aborted for a discarded attempt if the client already has some of its text.
        """
        yield from self._pieces(self._blocks.of(event))
        if self._blocks.response is not None:
            self.response = completed(self._blocks.response)
            yield from self._pieces(self._blocks.rest(text_of(self.response)))
            yield self._head.ending(self._index, self.response)

    def _pieces(self, moves: Iterable[Move]) -> Iterator[dict[str, Any]]:
        for step, block, text in moves:
            if step is Step.GROW and block.kind is BlockKind.TEXT:
                yield self._head.piece(self._index, text)


def _choice(index: int, text: str, response: execution_pb2.SystemResponse) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs_of(response.logprobs),
        "finish_reason": finish_reason_of(response),
    }


def logprobs_of(tokens: Sequence[generation_pb2.TokenLogprob]) -> dict[str, Any] | None:
    """Return the log-probabilities of an answer's tokens, as lists of the same length; None without them.

    The offset of a token counts the whole characters before it: a character may have several tokens.
    """
    if not tokens:
        return None
    return {
        "tokens": [_text(token) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_by_text((*token.top, token)) for token in tokens],
        "text_offset": list(_offsets(tokens)),
    }


def _by_text(tokens: Iterable[generation_pb2.TokenLogprob]) -> dict[str, float]:
    """Return log-probabilities by text; of tokens that read alike, as parts of characters do, the most probable."""
    return {_text(one): one.logprob for one in sorted(tokens, key=lambda one: one.logprob)}


def _offsets(tokens: Iterable[generation_pb2.TokenLogprob]) -> Iterator[int]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset = 0
    for token in tokens:
        yield offset
        offset += len(decoder.decode(token.piece))


def _text(token: generation_pb2.TokenLogprob) -> str:
    return token.piece.decode(errors="replace")
