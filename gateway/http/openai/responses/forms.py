"""The bodies of requests to `/v1/responses` and `/v1/conversations`, as OpenAI's API documentation describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.http.openai.forms import MAX_MESSAGES, MAX_TOKENS, ContentPart, Form, MoreFields, Notes

# Maximum number of items that a call can add to a conversation.
MAX_ITEMS = 20


class ItemForm(Form):
    """A message, a call, the output of a call, reasoning, or a reference to a stored item by its `id`."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None


class ResponseToolForm(Form):
    """A tool that the caller runs. Only functions are supported."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Form):
    """A tool, identified by its name."""

    type: str
    name: str = ""


class ToolChoice(Form):
    """The tool that must be called, or the tools that may be called."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] | None = None


class TextFormat(Form):
    """The form of the answer."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextForm(Form):
    """The form of the answer."""

    format: TextFormat | None = None


class ReasoningForm(Form):
    """Whether a reasoning model thinks."""

    effort: str | None = None


class ConversationName(Form):
    """A conversation, identified by its id."""

    id: str


class PromptForm(Form):
    """A prompt template of the deployment with its variables."""

    id: str
    variables: dict[str, str | ContentPart] | None = None


class ResponseForm(Form):
    """A request to `/v1/responses`."""

    model: str = ""
    input: str | Annotated[list[ItemForm], Field(max_length=MAX_MESSAGES)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    prompt: PromptForm | None = None
    tools: list[ResponseToolForm] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    text: TextForm | None = None
    reasoning: ReasoningForm | None = None
    max_output_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: Notes | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    pagantic: MoreFields | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the response is stored, which is the default."""
        return self.store is not False

    @property
    def conversation_id(self) -> str:
        """The id of the conversation, or an empty string."""
        if isinstance(self.conversation, ConversationName):
            return self.conversation.id
        return self.conversation or ""


class ConversationForm(Form):
    """A request that creates a conversation or changes its metadata."""

    items: Annotated[list[ItemForm], Field(max_length=MAX_ITEMS)] | None = None
    metadata: Notes | None = None


class ItemsForm(Form):
    """Items to add to a conversation."""

    items: Annotated[list[ItemForm], Field(min_length=1, max_length=MAX_ITEMS)]
