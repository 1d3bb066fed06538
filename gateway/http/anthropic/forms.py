"""The body of requests to `/v1/messages`, as Anthropic's API documentation describes it.

Only fields that change the answer are declared. Other fields are kept as extras so that the response can name them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway.http.openai.forms import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TOKENS,
    MAX_TOOLS,
    Form,
    MoreFields,
    Notes,
    has_more_tools,
)
from gateway.web.forms import Items

_FIELDS_OF_BLOCK = {
    "image": ("source",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content"),
}
# Tools that Anthropic runs or describes to its models: their types end with the date of a version.
_OTHER_TOOLS = re.compile(r"[a-z0-9_]+_20\d{6}|mcp_toolset|tool_search_tool_(bm25|regex)")


class TextBlock(Form):
    """A part of a text. Only text parts can be read."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"text"})  # A part of a text may be empty, but not absent.

    type: str
    text: str | None = None


class SourceForm(Form):
    """The data of an image. Images are not fetched from addresses."""

    type: str
    media_type: str = ""
    data: str = ""


class BlockForm(Form):
    """A block of a message: text, an image, thinking, a tool call, or a tool result."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"text", "thinking"})

    type: str
    text: str | None = None
    source: SourceForm | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[TextBlock], Items(MAX_PARTS)] | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other types of blocks."""
        return self.all_except("type", *_FIELDS_OF_BLOCK.get(self.type, ("text",)))


class TurnForm(Form):
    """A message of the conversation so far."""

    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[BlockForm], Items(MAX_PARTS)]


class ClientToolForm(Form):
    """A tool that the caller runs. Anthropic's built-in tools are omitted."""

    type: str | None = None
    name: str = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def is_left_out(self) -> bool:
        """Whether the tool is omitted, because the model cannot be offered it."""
        return self.type is not None and _OTHER_TOOLS.fullmatch(self.type) is not None

    def unused_paths(self) -> Iterator[str]:
        """Yield the type of an omitted tool, or the paths inside any other tool."""
        return iter((f"type={self.type}",)) if self.is_left_out else super().unused_paths()

    def unused(self) -> Iterable[str]:
        """Return `strict` if it permits arguments that do not satisfy the schema."""
        return ("strict",) if self.strict is False else ()


class ChoiceForm(Form):
    """The tool choice: whether a tool must be called, and which tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None

    def unused(self) -> Iterable[str]:
        """Return a name that is sent with a type other than `tool`."""
        return () if self.type == "tool" else ("name",)


class ThinkingForm(Form):
    """The reasoning setting: whether a reasoning model thinks, and for how many tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None

    def unused(self) -> Iterable[str]:
        """Return a budget that is sent with another type."""
        return () if self.type == "enabled" else ("budget_tokens",)


class OutputFormat(Form):
    """The JSON schema of the answer."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"schema"})  # The schema {} permits any value.
    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputForm(Form):
    """The requested form of the answer."""

    format: OutputFormat | None = None


class MessagesForm(Form):
    """A request to `/v1/messages`."""

    model: str
    messages: Annotated[list[TurnForm], Items(MAX_MESSAGES, minimum=1)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    system: str | Annotated[list[TextBlock], Items(MAX_PARTS)] | None = None
    stop_sequences: Annotated[list[str], Items(MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    tools: Annotated[list[ClientToolForm], Items(MAX_TOOLS)] | None = None
    tool_choice: ChoiceForm | None = None
    thinking: ThinkingForm | None = None
    output_config: OutputForm | None = None
    metadata: Notes | None = None
    thread: dict[str, Any] | None = None
    pagantic: MoreFields | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields that need another field."""
        if not (self.tools or has_more_tools(self.pagantic)):
            yield "tool_choice"
        more = self.pagantic or {}
        if not (more.get("keep_request") or more.get("keepRequest")):
            yield "metadata"


class CountTokensForm(MessagesForm):
    """A request to `/v1/messages/count_tokens`. The fields that only shape the answer have no effect."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1

    def unused(self) -> Iterable[str]:
        """Return the fields that are not part of the prompt."""
        return self.all_except("model", "pagantic", "messages", "system", "tools", "tool_choice")
