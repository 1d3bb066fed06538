"""The shapes of chats of OpenAI's API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import RootModel

from gateway.http.document.shapes.errors import OpenAIError
from gateway.http.document.shapes.shape import ABSENT, AnswerShape, Extension

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class CalledFunctionObject(AnswerShape):
    """The function of a call; `arguments` is JSON."""

    name: str
    arguments: str


class ToolCallObject(AnswerShape):
    """A call of a tool that the client runs."""

    id: str
    type: Literal["function"]
    function: CalledFunctionObject


class ChatMessage(AnswerShape):
    """The message of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: str = ABSENT
    tool_calls: list[ToolCallObject] = ABSENT


class TokenLogprobs(AnswerShape):
    """The log-probabilities of the tokens of a choice."""

    content: list[dict[str, Any]]
    refusal: None


class ChatChoice(AnswerShape):
    """One of the answers."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: TokenLogprobs | None


class ChatUsage(AnswerShape):
    """The tokens of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatCompletion(AnswerShape):
    """The answer to a chat; `metadata` is only in a stored answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    service_tier: str
    pagantic: Extension
    metadata: dict[str, str] = ABSENT


class ChunkChoice(AnswerShape):
    """The new part of a choice."""

    index: int
    delta: dict[str, Any]
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None


class AnswerPart(AnswerShape):
    """The common fields of all parts of answers."""

    id: str
    created: int
    model: str
    usage: ChatUsage = ABSENT
    pagantic: Extension = ABSENT


class ChatCompletionChunk(AnswerPart):
    """A part of the answer to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]


class ChatEvent(RootModel[ChatCompletionChunk | OpenAIError]):
    """The data of an event; `[DONE]`, which is not JSON, comes last."""


class ListPage(AnswerShape):
    """The common fields of every page of a list; a list without objects has empty ids."""

    object: Literal["list"]
    first_id: str
    last_id: str
    has_more: bool


class ChatList(ListPage):
    """A page of stored chats."""

    data: list[ChatCompletion]


class StoredMessage(AnswerShape):
    """A message of a stored chat."""

    id: str
    role: str
    content: str
    content_parts: None
    refusal: None
    tool_calls: list[ToolCallObject] = ABSENT
    tool_call_id: str = ABSENT


class StoredMessageList(ListPage):
    """A page of the messages of a stored chat."""

    data: list[StoredMessage]


class Deleted(AnswerShape):
    """The deleted object."""

    id: str
    object: str
    deleted: Literal[True]
