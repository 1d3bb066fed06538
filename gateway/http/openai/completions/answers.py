"""Pure functions that translate the orchestrator's responses into the form of `/v1/completions`, whole or in chunks."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import RootModel

from gateway.http.bodies import AnswerShape
from gateway.http.failures import OpenAIError
from gateway.http.openai.answers import (
    AnswerPart,
    FinishReason,
    Heading,
    completed,
    extension_of,
    finish_reason_of,
    text_of,
    usage_of,
)
from gateway.http.streams.blocks import BlockKind, Blocks, Move, Step
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2

ID_PREFIX = "cmpl-"


class TextLogprobs(AnswerShape):
    """The log-probabilities of the tokens of a choice, as lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(AnswerShape):
    """An answer or, in a stream, the new part of an answer."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextCompletion(AnswerPart):
    """The answer to raw texts, or a part of the answer in a stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class TextEvent(RootModel[TextCompletion | OpenAIError]):
    """The data of an event. `[DONE]`, which is not JSON, comes last."""


@dataclass(frozen=True, slots=True)
class ContinuationHead:
    """The common parts of a complete answer and its chunks.

    Args:
    heading: The heading of the answer.
    echoes: The text at the beginning of each choice: the prompt, or an empty string.
    ignored: Fields of the request that have no effect.
    choices_per_prompt: The number of consecutive choices that share a prompt.
    """

    heading: Heading
    echoes: Sequence[str]
    ignored: Sequence[str]
    choices_per_prompt: int = 1

    def whole(self, responses: Sequence[execution_pb2.SystemResponse]) -> TextCompletion:
        """Return the complete answer, with a choice for each response."""
        choices = [
            _choice(index, echo + text_of(response), response)
            for index, (echo, response) in enumerate(zip(self.echoes, responses, strict=True))
        ]
        whole = self._with(choices)
        whole["usage"] = usage_of(responses, self.choices_per_prompt)
        whole["pagantic"] = extension_of(responses, self.ignored)
        return whole

    def piece(self, index: int, text: str) -> TextCompletion:
        """Return the chunk with the next text of a choice."""
        return self._with([{"index": index, "text": text, "logprobs": None, "finish_reason": None}])

    def ending(self, index: int, response: execution_pb2.SystemResponse) -> TextCompletion:
        """Return the chunk that ends a choice."""
        ending = self._with([_choice(index, "", response)])
        ending["pagantic"] = extension_of([response], self.ignored)
        return ending

    def usage(self, responses: Sequence[execution_pb2.SystemResponse]) -> TextCompletion:
        """Return the chunk with the usage of all choices, which ends a stream if the client requested it."""
        chunk = self._with([])
        chunk["usage"] = usage_of(responses, self.choices_per_prompt)
        return chunk

    def _with(self, choices: list[TextChoice]) -> TextCompletion:
        part: TextCompletion = {
            "id": self.heading.id,
            "object": "text_completion",
            "created": self.heading.created_s,
            "model": self.heading.model,
            "choices": choices,
        }
        if self.heading.has_usage:
            part["usage"] = None
        return part


class ContinuationChunks:
    """Produces the chunks of a choice in the order of its events."""

    def __init__(self, head: ContinuationHead, index: int) -> None:
        self._head = head
        self._index = index
        self._blocks = Blocks()
        self.response: execution_pb2.SystemResponse | None = None

    def first(self) -> Iterator[TextCompletion]:
        """Yield the chunk with the prompt if the client requested an echo."""
        if echo := self._head.echoes[self._index]:
            yield self._head.piece(self._index, echo)

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[TextCompletion]:
        """Yield the chunks for an event.

        Raises the error of a failed response, or Aborted if an attempt is discarded or its text is changed after the
        client received some of it.
        """
        yield from self._pieces(self._blocks.of(event))
        if self._blocks.response is not None:
            self.response = completed(self._blocks.response)
            yield from self._pieces(self._blocks.rest(text_of(self.response)))
            yield self._head.ending(self._index, self.response)

    def _pieces(self, moves: Iterable[Move]) -> Iterator[TextCompletion]:
        for step, block, text in moves:
            if step is Step.GROW and block.kind is BlockKind.TEXT:
                yield self._head.piece(self._index, text)


def _choice(index: int, text: str, response: execution_pb2.SystemResponse) -> TextChoice:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs_of(response.logprobs),
        "finish_reason": finish_reason_of(response),
    }


def logprobs_of(tokens: Sequence[generation_pb2.TokenLogprob]) -> TextLogprobs | None:
    """Return the log-probabilities of an answer's tokens as lists of equal length, or None without log-probabilities.

    The offset of a token counts only complete characters before it, because a character may consist of several tokens.
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
    """Return log-probabilities by text. If several tokens have the same text, the most probable token counts."""
    return {_text(token): token.logprob for token in sorted(tokens, key=lambda token: token.logprob)}


def _offsets(tokens: Iterable[generation_pb2.TokenLogprob]) -> Iterator[int]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset = 0
    for token in tokens:
        yield offset
        offset += len(decoder.decode(token.piece))


def _text(token: generation_pb2.TokenLogprob) -> str:
    return token.piece.decode(errors="replace")
