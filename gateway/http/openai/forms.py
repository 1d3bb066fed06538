"""The body of requests to `/v1/chat/completions`, as OpenAI's API documentation describes it.

Only fields that change the answer are declared. Other fields are kept as extras so that the response can name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from gateway.http.bodies import SCHEMAS, AnswerShape
from gateway.web.forms import Items
from gateway.web.optional import OptionalFields
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.counting import LIMITS

MAX_STOPS = LIMITS["pagantic.orchestrator.v1.ExecutionHints.stop"]
MAX_BIASES = LIMITS["pagantic.orchestrator.v1.ExecutionHints.logit_bias"]
MAX_MESSAGES = LIMITS["pagantic.orchestrator.v1.SystemRequest.messages"]
MAX_PARTS = LIMITS["pagantic.common.v1.Message.parts"]
MAX_TOOLS = LIMITS["pagantic.orchestrator.v1.SystemRequest.client_tools"]
MAX_CALLS = LIMITS["pagantic.common.v1.Message.tool_calls"]
MAX_INPUTS = LIMITS["pagantic.inference.v1.EmbedRequest.texts"]
# Several entries of such a list, for example the items of a response, may form a single message.
MAX_ENTRIES = 10_000
MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20
MAX_NOTES = 16
MAX_NOTE_CHARS = 512
MAX_NAMES = 16
MAX_TOKENS = (1 << 31) - 1
MAX_IGNORED = 64
MAX_PATH_CHARS = 256
_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
# For each type of part and each role of a message: the field that is read.
_FIELD_OF_PART = {**dict.fromkeys(_TEXTS, "text"), **dict.fromkeys(("image_url", "input_image"), "image_url")}
_FIELDS_OF_ROLE = {"assistant": ("reasoning_content", "tool_calls"), "tool": ("tool_call_id",)}


class Form(OptionalFields):
    """A JSON object that knows its sent fields without effect."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @cached_property
    def ignored(self) -> list[str]:
        """The paths of fields that were sent but have no effect here, such as `messages[].name`. Long lists are cut."""
        paths: set[str] = set()
        for path in self.unused_paths():
            paths.add(path[:MAX_PATH_CHARS])
            if len(paths) == MAX_IGNORED:
                break
        return sorted(paths)

    def unused_paths(self) -> Iterator[str]:
        """Yield the paths of fields without effect in this form and in the forms inside it."""
        sent, values = self.model_fields_set, self.__dict__
        unused = sent.intersection(self.unused())
        yield from (type(self).model_fields[name].alias or name for name in unused if not _is_blank(values[name]))
        yield from self.model_extra or ()
        for name in sent - unused:
            value = values.get(name)
            if value is not None and not isinstance(value, str):
                yield from _paths_inside(name, value)

    def unused(self) -> Iterable[str]:
        """Return the declared fields that have no effect in combination with the other fields."""
        return ()

    def all_except(self, *used: str) -> set[str]:
        """Return the declared and sent fields, except the used fields."""
        return self.model_fields_set.difference(used, self.model_extra or ())


def _is_blank(value: Any) -> bool:
    """Return whether a value is a form without any field."""
    return isinstance(value, Form) and not value.model_fields_set


class IgnoredFields(AnswerShape):
    """The fields of the request that had no effect."""

    ignored: list[str]


def naming_ignored(answer: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    """Add the request's fields without effect to an answer without any other extension."""
    if not form.ignored:
        return answer
    return {**answer, "pagantic": IgnoredFields(ignored=form.ignored)}


def _paths_inside(name: str, value: Any) -> Iterator[str]:
    """Yield the paths of fields without effect in the forms that the value of a field contains."""
    parts: Iterable[tuple[str, Any]] = ((name, value),)
    if isinstance(value, list):
        parts = ((f"{name}[]", part) for part in value if not isinstance(part, str))
    elif isinstance(value, dict):
        parts = ((f"{name}.{key}", part) for key, part in value.items() if not isinstance(part, str))
    for place, part in parts:
        if isinstance(part, Form):
            yield from (f"{place}.{path}" for path in part.unused_paths())


Notes = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=MAX_NOTE_CHARS)]],
    Items(MAX_NOTES),
]
# The JSON of a SystemRequest, whose schema is in the API document.
MoreFields = Annotated[
    dict[str, Any], WithJsonSchema({"$ref": f"{SCHEMAS}{execution_pb2.SystemRequest.DESCRIPTOR.full_name}"})
]
FormT = TypeVar("FormT", bound=Form)


class ImageUrl(Form):
    """An image as a data URL, because images are not fetched from addresses."""

    url: str


class ContentPart(Form):
    """A part of a message's content: text, a refusal or an image. In `/v1/responses`, `image_url` is a string."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"text", "refusal"})  # A part of a text may be empty, but not absent.

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other types of parts."""
        return self.all_except("type", _FIELD_OF_PART.get(self.type, "refusal"))

    @property
    def data_url(self) -> str:
        """The address of an image, or an empty string if there is no image."""
        if isinstance(self.image_url, ImageUrl):
            return self.image_url.url
        return self.image_url or ""


class CalledFunction(Form):
    """The function of a call in the conversation so far."""

    name: str
    arguments: str = ""


class CallForm(Form):
    """A call in the conversation so far."""

    id: str
    type: str = "function"
    function: CalledFunction | None = None


class MessageForm(Form):
    """A message of the conversation so far."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Items(MAX_PARTS)] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[CallForm], Items(MAX_CALLS)] | None = None
    tool_call_id: str | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other roles, and a refusal that accompanies content."""
        refusal = ("refusal",) if self.role == "assistant" and self.content is None else ()
        return self.all_except("role", "content", *_FIELDS_OF_ROLE.get(self.role, ()), *refusal)


class FunctionForm(Form):
    """A function that the caller runs. Its arguments satisfy `parameters`, regardless of `strict`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def unused(self) -> Iterable[str]:
        """Return `strict` if it permits arguments that do not satisfy the parameters."""
        return ("strict",) if self.strict is False else ()


class ToolForm(Form):
    """A function that the caller runs. A custom tool, which has no parameters, is omitted."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"function"})  # The validation error of {} names the missing field.

    type: str
    function: FunctionForm | None = None

    @property
    def is_left_out(self) -> bool:
        """Whether the tool is omitted, because the model cannot be offered it."""
        return self.type == "custom"

    def unused_paths(self) -> Iterator[str]:
        """Yield the type of an omitted tool, or the paths inside any other tool."""
        return iter((f"type={self.type}",)) if self.is_left_out else super().unused_paths()


class NamedFunction(Form):
    """The name of a function."""

    name: str


class AllowedTool(Form):
    """A tool that may be called, identified by its name. Only functions may be called."""

    type: str
    function: NamedFunction | None = None

    @property
    def function_name(self) -> str:
        """The name of a function, or an empty string for another tool."""
        return self.function.name if self.type == "function" and self.function is not None else ""

    def unused_paths(self) -> Iterator[str]:
        """Yield the type of a tool that is not a function, or the paths inside a function."""
        return super().unused_paths() if self.function_name else iter((f"type={self.type}",))


class AllowedTools(Form):
    """The subset of the given tools that may be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[AllowedTool], Items(MAX_TOOLS)] | None = None

    @property
    def function_names(self) -> frozenset[str]:
        """The names of the functions that may be called."""
        return frozenset(tool.function_name for tool in self.tools or ())


class ToolChoiceForm(Form):
    """The tool that must be called, or the tools that may be called."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"function"})

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other types of choices."""
        return self.all_except("type", self.type)


class JsonSchemaForm(Form):
    """A schema with its name. The answer satisfies the schema, regardless of `strict`."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"schema"})  # The schema {} permits any value.
    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    name: str = ""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def unused(self) -> Iterable[str]:
        """Return `strict` if it permits answers that do not satisfy the schema."""
        return ("strict",) if self.strict is False else ()


class ResponseFormat(Form):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaForm | None = None

    def unused(self) -> Iterable[str]:
        """Return a schema that is sent with another type."""
        return self.all_except("type", self.type)


class StreamOptions(Form):
    """Options that add parts to a stream."""

    include_usage: bool = False


class MetadataForm(Form):
    """New metadata for a stored object."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"metadata"})  # Null and {} remove the metadata.

    metadata: Notes | None


class AnswerForm(Form):
    """The common fields of requests for chats and for continuations of raw texts."""

    model: str = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Items(MAX_STOPS)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Items(MAX_BIASES)] | None = None
    response_format: ResponseFormat | None = None
    pagantic: MoreFields | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether the last chunk of a stream reports the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def unused(self) -> Iterable[str]:
        """Return the stream options if the answer is not streamed."""
        return () if self.stream else ("stream_options",)


class ChatForm(AnswerForm):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[MessageForm], Items(MAX_MESSAGES, minimum=1)]
    max_completion_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning_effort: str | None = None
    tools: Annotated[list[ToolForm], Items(MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceForm | None = None
    functions: Annotated[list[FunctionForm], Items(MAX_TOOLS)] | None = None
    function_call: Literal["auto", "none"] | NamedFunction | None = None
    modalities: Annotated[list[str], Items(MAX_NAMES)] | None = None
    store: bool | None = None
    metadata: Notes | None = None

    def unused(self) -> Iterator[str]:
        """Yield the fields that lack a required other field or are replaced by another field."""
        yield from super().unused()
        has_tools = bool(self.tools or self.functions) or has_more_tools(self.pagantic)
        reasons = {
            "max_tokens": bool(self.max_completion_tokens),
            "top_logprobs": not self.logprobs,
            "reasoning_effort": self.reasoning_effort != "none",
            "functions": self.tools is not None,
            "tool_choice": not has_tools,
            "function_call": self.tool_choice is not None or not has_tools,
            "metadata": not self.store,
        }
        yield from (name for name, is_unused in reasons.items() if is_unused)


def has_more_tools(fields: Mapping[str, Any] | None) -> bool:
    """Return whether the SystemRequest in a form's field `pagantic` names tools or defines tools of the caller."""
    return any((fields or {}).get(name) for name in ("tools", "client_tools", "clientTools"))


def read_form(value: Any, kind: type[FormT]) -> FormT:
    """Parse a request as a form of the given kind. Raises InvalidRequest, which names the invalid field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        detail = max(error.errors(include_url=False, include_input=False), key=_precision_of)
        raise InvalidRequest(f"{_place_of(detail['loc'])}: {detail['msg'].lower()}") from None


def require_model(value: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if a body has no model, because clients of OpenAI's API expect an error in that case."""
    if value.get("model") is None:
        raise InvalidRequest('model is missing: send a name of GET /v1/models, or "" for the default one')


def texts_of(name: str, given: str | Sequence[Any]) -> list[str]:
    """Return the texts in the field of this name. Raises InvalidRequest for token ids."""
    if isinstance(given, str):
        return [given]
    for position, text in enumerate(given):
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{name}[{position}] is no text: send texts, because each model has token ids of its own"
            )
    return list(given)


@cache
def _fields() -> frozenset[str]:
    """Return the names of all fields. The other parts of an error's location are names of forms."""
    return frozenset({"schema"}.union(*(form.model_fields for form in _forms_of(Form))))


def _forms_of(kind: type[Form]) -> Iterator[type[Form]]:
    """Yield a kind of form and all kinds derived from it."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _forms_of(derived)


def _precision_of(error: ErrorDetails) -> tuple[int, bool]:
    """Return a rank that identifies the most precise error of a value.

    A value with several possible forms has an error for each form.
    """
    depth = sum(isinstance(part, int) or part in _fields() for part in error["loc"])
    return depth, not error["type"].endswith("_type")


def _place_of(location: tuple[int | str, ...]) -> str:
    """Return the path of a value, such as messages[0].role."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part in _fields():
            text += f".{part}"
    return text.removeprefix(".") or "the body"
