"""The shapes of Ollama's API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import RootModel

from gateway.http.document.shapes.errors import OllamaError
from gateway.http.document.shapes.shape import ABSENT, AnswerShape, Extension


class AnswerLine(AnswerShape):
    """The common fields of every line of an answer, and of the whole answer."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length"] = ABSENT
    prompt_eval_count: int = ABSENT
    eval_count: int = ABSENT
    eval_duration: int = ABSENT
    pagantic: Extension = ABSENT


class OllamaMessage(AnswerShape):
    """A part of the message, or all of it."""

    role: Literal["assistant"]
    content: str
    thinking: str = ABSENT
    tool_calls: list[dict[str, Any]] = ABSENT


class OllamaChat(AnswerLine):
    """A line of a chat, or the whole chat."""

    message: OllamaMessage


class OllamaText(AnswerLine):
    """A line of a text, or the whole text."""

    response: str
    thinking: str = ABSENT


class OllamaChatLine(RootModel[OllamaChat | OllamaError]):
    """A line of a chat; an error ends the stream early."""


class OllamaTextLine(RootModel[OllamaText | OllamaError]):
    """A line of a text; an error ends the stream early."""


class OllamaModel(AnswerShape):
    """A model that the caller may name; unknown values are empty."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: dict[str, Any]


class OllamaModelList(AnswerShape):
    """The models that the caller may name."""

    models: list[OllamaModel]


class ShownModel(AnswerShape):
    """Facts about a model."""

    modelfile: str
    parameters: str
    template: str
    modified_at: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(AnswerShape):
    """The version of the API."""

    version: str
