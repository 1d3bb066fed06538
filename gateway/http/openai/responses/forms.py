"""The bodies of requests to `/v1/responses` and `/v1/conversations`, as OpenAI's API documentation describes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gateway.http.openai.forms import (
    MAX_ENTRIES,
    MAX_NAMES,
    MAX_PARTS,
    MAX_TOKENS,
    MAX_TOOLS,
    ContentPart,
    Form,
    MoreFields,
    Notes,
    has_more_tools,
)
from gateway.web.forms import Items
from pagantic_common.rpc.counting import LIMITS

# Maximum number of items that a call can add to a conversation.
MAX_ITEMS = 20
MAX_VARIABLES = LIMITS["pagantic.orchestrator.v1.PromptTemplate.variables"]
LOGPROBS = "message.output_text.logprobs"
NAMESPACE = "namespace"
_FIELDS_OF_ITEM = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),  # A request may also use the namespace.
    "function_call_output": ("call_id", "output"),
    "compaction": ("encrypted_content",),
    "item_reference": ("id",),
}
# Types of tools that OpenAI runs, or whose input has no schema.
_OTHER_TOOLS = frozenset(
    {
        *("apply_patch", "code_interpreter", "computer", "computer_use_preview", "custom", "file_search"),
        *("image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell", "tool_search"),
    }
)


class ItemForm(Form):
    """A message, a call, the output of a call, reasoning, or a reference to a stored item by its `id`."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Annotated[list[ContentPart], Items(MAX_PARTS)] | None = None
    call_id: str | None = None
    namespace: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Annotated[list[ContentPart], Items(MAX_PARTS)] | None = None
    summary: Annotated[list[ContentPart], Items(MAX_PARTS)] | None = None
    encrypted_content: str | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other types of items. Reasoning is read from its content, or else from its summary."""
        reasoning = ("summary",) if self.content is None else ("content",)
        return self.all_except("type", *_FIELDS_OF_ITEM.get(self.type, reasoning))


class ResponseToolForm(Form):
    """A function that the caller runs, or a namespace of functions. Tools that OpenAI runs are omitted."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: Annotated[list[ResponseToolForm], Items(MAX_TOOLS)] | None = None

    @property
    def is_left_out(self) -> bool:
        """Whether the tool is omitted, because the model cannot be offered it."""
        return self.type in _OTHER_TOOLS or self.type.startswith("web_search")

    def unused_paths(self) -> Iterator[str]:
        """Yield the type of an omitted tool, or the paths inside any other tool."""
        return iter((f"type={self.type}",)) if self.is_left_out else super().unused_paths()

    def unused(self) -> Iterable[str]:
        """Return the fields of the other type, and `strict` if it permits arguments that violate the schema."""
        if self.type == NAMESPACE:
            return self.all_except("type", "name", "tools")
        return self.all_except("type", "name", "description", "parameters", "strict" if self.strict else "")


class NamedTool(Form):
    """A tool, identified by its name. Only functions may be called."""

    type: str
    name: str = ""

    def unused_paths(self) -> Iterator[str]:
        """Yield the type of a tool that is not a function, or the paths inside a function."""
        return super().unused_paths() if self.type == "function" else iter((f"type={self.type}",))


class ToolChoice(Form):
    """The tool that must be called, or the tools that may be called."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Items(MAX_TOOLS)] | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other types of choices."""
        return self.all_except("type", *(("mode", "tools") if self.type == "allowed_tools" else ("name",)))


class TextFormat(Form):
    """The form of the answer. The answer satisfies the schema, regardless of `strict`."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"schema"})  # The schema {} permits any value.
    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of a schema that is sent with another type, and fields that do not affect the answer."""
        used = ("name", "schema_", "strict" if self.strict else "") if self.type == "json_schema" else ()
        return self.all_except("type", *used)


class TextForm(Form):
    """The form of the answer."""

    format: TextFormat | None = None


class ReasoningForm(Form):
    """The reasoning setting: whether a reasoning model thinks."""

    effort: str | None = None

    def unused(self) -> Iterable[str]:
        """Return an effort that does not turn reasoning off."""
        return () if self.effort == "none" else ("effort",)


class ConversationName(Form):
    """A conversation, identified by its id."""

    id: str


class PromptForm(Form):
    """A prompt template of the deployment with its variables."""

    id: str
    variables: Annotated[dict[str, str | ContentPart], Items(MAX_VARIABLES)] | None = None


class ResponseForm(Form):
    """A request to `/v1/responses`."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"input"})  # An empty text is the user's actual input.

    model: str = ""
    input: str | Annotated[list[ItemForm], Items(MAX_ENTRIES)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    prompt: PromptForm | None = None
    tools: Annotated[list[ResponseToolForm], Items(MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    text: TextForm | None = None
    reasoning: ReasoningForm | None = None
    max_output_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[list[str], Items(MAX_NAMES)] | None = None
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

    def unused(self) -> Iterable[str]:
        """Return a tool choice without tools to choose from."""
        return () if self.tools or has_more_tools(self.pagantic) else ("tool_choice",)

    def unused_paths(self) -> Iterator[str]:
        """Yield the unused paths, namespaces of calls without a tool, and output names that no response has."""
        is_known = self._has_all_namespaces()
        yield from (path for path in super().unused_paths() if not (is_known and path == "input[].namespace"))
        yield from (f"include={name}" for name in self.include or () if name != LOGPROBS)

    def _has_all_namespaces(self) -> bool:
        """Return whether the tools include the namespaces of all calls."""
        namespaces = {tool.name for tool in self.tools or () if tool.type == NAMESPACE}
        items = self.input if isinstance(self.input, list) else ()
        return all(item.namespace in namespaces for item in items if item.namespace)


class SummaryForm(ResponseForm):
    """A request to `/v1/responses/compact`."""

    def unused(self) -> Iterable[str]:
        """Return the fields that shape a response but not a summary."""
        return ("include", "metadata", "store", "stream", "text", "tool_choice", "tools", "top_logprobs")


class CountForm(ResponseForm):
    """A request to `/v1/responses/input_tokens`."""

    def unused(self) -> Iterable[str]:
        """Return the fields that are not part of the prompt."""
        prompt = ("input", "instructions", "conversation", "previous_response_id", "prompt", "tools", "tool_choice")
        return self.all_except("model", "pagantic", *prompt)


class ConversationForm(Form):
    """A request that creates a conversation or changes its metadata."""

    items: Annotated[list[ItemForm], Items(MAX_ITEMS)] | None = None
    metadata: Notes | None = None


class ConversationUpdateForm(ConversationForm):
    """A request that changes the metadata of a conversation."""

    def unused(self) -> Iterable[str]:
        """Return the items, because items are added by a separate request."""
        return ("items",)


class ItemsForm(Form):
    """Items to add to a conversation."""

    items: Annotated[list[ItemForm], Items(MAX_ITEMS, minimum=1)]
