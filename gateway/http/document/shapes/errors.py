"""The shapes of errors, as each API has them."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from gateway.http.document.shapes.shape import ABSENT, AnswerShape


class Cause(AnswerShape):
    """An error that led to another error."""

    code: str | None
    message: str


class ErrorDetails(AnswerShape):
    """Fields that an API lacks; an error of a request that was refused on arrival has no such fields."""

    request_id: str = ABSENT
    retryable: bool = ABSENT
    details: dict[str, str] = ABSENT
    caused_by: list[Cause] = ABSENT


class CodedDetails(ErrorDetails):
    """The same, with the code of the taxonomy."""

    code: str | None


class OpenAIErrorObject(AnswerShape):
    """The error; `code` is a code of the taxonomy, or the name of a gRPC status."""

    message: str
    type: str
    param: str | None
    code: str | None
    pagantic: ErrorDetails = ABSENT


class OpenAIError(AnswerShape):
    """An error of OpenAI's API, and of every path that has no other."""

    error: OpenAIErrorObject


class AnthropicErrorObject(AnswerShape):
    """The error."""

    type: str
    message: str
    pagantic: CodedDetails


class AnthropicError(AnswerShape):
    """An error of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


class OllamaError(AnswerShape):
    """An error of Ollama's API."""

    error: str
    pagantic: CodedDetails


class ModelError(RootModel[OpenAIError | AnthropicError]):
    """An error of a path that serves two APIs."""
