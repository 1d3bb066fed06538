"""The shapes of continued raw texts of OpenAI's API."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from gateway.http.document.shapes.chats import AnswerPart, FinishReason
from gateway.http.document.shapes.errors import OpenAIError
from gateway.http.document.shapes.shape import AnswerShape


class TextLogprobs(AnswerShape):
    """The log-probabilities of the tokens of a choice, as lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(AnswerShape):
    """An answer, or the new part of an answer."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextCompletion(AnswerPart):
    """The answer to raw texts, or a part of it in a stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class TextEvent(RootModel[TextCompletion | OpenAIError]):
    """The data of an event; `[DONE]`, which is not JSON, comes last."""
