"""The body of requests to `/v1/messages`, as Anthropic's API documentation describes it.

Only fields that change the answer are declared. Other fields are kept as extras so that the response can name them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.http.openai.forms import MAX_MESSAGES, MAX_STOPS, MAX_TOKENS, Form, MoreFields, Notes


class TextBlock(Form):
    """A part of a text. Only text parts can be read."""

    type: str
    text: str | None = None


class SourceForm(Form):
    """The data of an image. Images are not fetched from addresses."""

    type: str
    media_type: str = ""
    data: str = ""


class BlockForm(Form):
    """A block of a message: text, an image, thinking, a tool call, or a tool result."""

    type: str
    text: str | None = None
    source: SourceForm | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[TextBlock] | None = None


class TurnForm(Form):
    """A message of the conversation so far."""

    role: Literal["user", "assistant"]
    content: str | list[BlockForm]


class ClientToolForm(Form):
    """A tool that the caller runs. Anthropic's built-in tools are not supported."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ChoiceForm(Form):
    """The choice of tools: whether a tool must be called, and which tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class ThinkingForm(Form):
    """The reasoning setting: whether a reasoning model thinks, and for how many tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None


class OutputFormat(Form):
    """The JSON schema of the answer."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputForm(Form):
    """The requested form of the answer."""

    format: OutputFormat | None = None


class MessagesForm(Form):
    """A request to `/v1/messages`."""

    model: str
    messages: Annotated[list[TurnForm], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    system: str | list[TextBlock] | None = None
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    tools: list[ClientToolForm] | None = None
    tool_choice: ChoiceForm | None = None
    thinking: ThinkingForm | None = None
    output_config: OutputForm | None = None
    metadata: Notes | None = None
    pagantic: MoreFields | None = None


class CountForm(MessagesForm):
    """A request to `/v1/messages/count_tokens`. The fields that only shape the answer have no effect."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1
