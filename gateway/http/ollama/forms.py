"""The bodies of requests to Ollama's API, as its documentation describes them.

Only fields that change the answer are declared. Other fields are kept as extras so that the response can name them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.http.openai.forms import (
    MAX_CALLS,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TOKENS,
    MAX_TOOLS,
    Form,
    MoreFields,
    ToolForm,
)
from gateway.web.forms import Items

_FIELDS_OF_ROLE = {"assistant": ("thinking", "tool_calls"), "tool": ("tool_name", "tool_call_id")}
FILL_CONTEXT = -2  # In Ollama, this number of tokens means the rest of the context window, and -1 means no limit.


class OptionsForm(Form):
    """Options of the sampler."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: Annotated[int, Field(ge=FILL_CONTEXT, le=MAX_TOKENS)] | None = None
    stop: str | Annotated[list[str], Items(MAX_STOPS)] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class OllamaForm(Form):
    """The common fields of `/api/chat` and `/api/generate`."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"format"})  # The schema {} permits any value.

    model: str
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OptionsForm | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    stream: bool | None = None
    pagantic: MoreFields | None = None

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream, which is the default."""
        return self.stream is not False

    def unused(self) -> Iterable[str]:
        """Return a thinking level, which has the same effect as true."""
        return ("think",) if isinstance(self.think, str) else ()


class CalledForm(Form):
    """The function of an earlier call in the conversation."""

    name: str
    arguments: dict[str, Any] | None = None


class ToolCallForm(Form):
    """An earlier call in the conversation. Older clients send no id."""

    id: str | None = None
    function: CalledForm


class OllamaTurnForm(Form):
    """An earlier message of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[str], Items(MAX_PARTS)] | None = None
    tool_calls: Annotated[list[ToolCallForm], Items(MAX_CALLS)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other roles. Only the user's messages may have images."""
        return self.all_except("role", "content", "images", *_FIELDS_OF_ROLE.get(self.role, ()))


class OllamaChatForm(OllamaForm):
    """A request to `/api/chat`. Without messages, it loads the model."""

    messages: Annotated[list[OllamaTurnForm], Items(MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolForm], Items(MAX_TOOLS)] | None = None


class GenerateForm(OllamaForm):
    """A request to `/api/generate`. Without a prompt and images, it loads the model."""

    prompt: str = ""
    images: Annotated[list[str], Items(MAX_PARTS)] | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None


class ShowForm(Form):
    """A request to `/api/show`. Older clients send the model in `name`."""

    model: str = ""
    name: str = ""

    def unused(self) -> Iterable[str]:
        """Return a name that is sent together with the model."""
        return ("name",) if self.model else ()
