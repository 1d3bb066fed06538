"""The body of requests to `/v1/chat/completions`, as OpenAI's API documentation describes it.

Only fields that change the answer are declared. Other fields are kept as extras so that the response can name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from gateway.http.bodies import SCHEMAS
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest

MAX_CHOICES = 8
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
MAX_MESSAGES = 10_000
MAX_NOTES = 16
MAX_NOTE_CHARS = 512
MAX_TOKENS = (1 << 31) - 1


class Form(BaseModel):
    """A JSON object. A null field counts as missing."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def ignored(self) -> list[str]:
        """The fields that were sent but have no effect here."""
        return sorted(self.model_extra or ())


Notes = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=MAX_NOTE_CHARS)]],
    Field(max_length=MAX_NOTES),
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

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None

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
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[CallForm] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionForm(Form):
    """A function that the caller runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolForm(Form):
    """A tool that the caller runs. Only functions are supported."""

    type: str
    function: FunctionForm | None = None


class NamedFunction(Form):
    """The name of a function."""

    name: str


class AllowedTools(Form):
    """The subset of the given tools that may be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[ToolForm] = []


class ToolChoiceForm(Form):
    """The tool that must be called, or the tools that may be called."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchemaForm(Form):
    """A schema with its name. The answer satisfies the schema whether or not `strict` is set."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    name: str = ""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ResponseFormat(Form):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaForm | None = None


class StreamOptions(Form):
    """Options that add parts to a stream."""

    include_usage: bool = False


class MetadataForm(Form):
    """New metadata for a stored object."""

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
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    pagantic: MoreFields | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether the last chunk of a stream has the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatForm(AnswerForm):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[MessageForm], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning_effort: str | None = None
    tools: list[ToolForm] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceForm | None = None
    functions: list[FunctionForm] | None = None
    function_call: Literal["auto", "none"] | NamedFunction | None = None
    modalities: list[str] | None = None
    store: bool | None = None
    metadata: Notes | None = None


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
    """Return the names of all fields. Other parts of an error's location are names of forms."""
    return frozenset({"schema"}.union(*(form.model_fields for form in _forms_of(Form))))


def _forms_of(kind: type[Form]) -> Iterator[type[Form]]:
    """Yield a kind of form and all kinds derived from it."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _forms_of(derived)


def _precision_of(error: ErrorDetails) -> tuple[int, bool]:
    """Return a rank by which the most precise error of a value is found.

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
