"""Messages, tool calls and tools, and the fields allowed in a message of each role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.images import Image, check_count, check_image

IMAGES = "images"  # the capability of a model that accepts images
MAX_CALL_ID_CHARS = 512


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call by the model. `arguments_json` is the text of a JSON object."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation.

    `cut` is set if a cancellation or a timeout cut the text short. `images` have positions in the content. `said_as` is
    the caller's own word for the role, such as developer; it is stored, but models do not see it. A stored message that
    was `removed` keeps only its position and its role.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    cut: bool = False
    images: tuple[Image, ...] = ()
    said_as: str = ""
    removed: bool = False

    @property
    def is_shown(self) -> bool:
        """Whether models see the message: it has content, images or calls, or is the result of a call."""
        has_text = bool(self.content or self.images or self.tool_calls)
        return not self.removed and (has_text or self.role is Role.TOOL)


class ToolSafety(StrEnum):
    """The reach of a tool: it only computes, reads, changes the deployment, or reaches systems outside of it."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool's name, purpose and parameters. A `timeout_s` of None selects the tool service's default."""

    name: str
    description: str
    parameters_json: str
    safety: ToolSafety = ToolSafety.NONE
    idempotent: bool = False
    timeout_s: float | None = None
    requires: tuple[str, ...] = ()

    @property
    def has_effects(self) -> bool:
        """Whether a call may have an effect that another call repeats."""
        return not self.idempotent and self.safety not in (ToolSafety.NONE, ToolSafety.READ)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    call_id: str
    name: str
    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """The progress of a running call, in a unit that the tool chooses. `total` is None if unknown."""

    progress: float
    total: float | None = None
    message: str = ""


class Ending(Enum):
    """The ending of a lost call."""

    DONE = auto()
    NOT_RUN = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class LostCall:
    """The ending of a lost call, with its result if the ending is DONE."""

    ending: Ending
    content: str = ""


class ToolFailed(Exception):
    """The tool failed for a reason that the model may read.

    Args:
        message: The reason and the next step, in lower case, without secrets.
        is_final: Whether the same call would fail again. A final failure is not retried.
    """

    def __init__(self, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.is_final = is_final


class ToolChoiceMode(StrEnum):
    """The model's freedom to call tools."""

    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """A choice of tools: a mode, or the name of the tool that must be called."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    tool_name: str = ""

    @property
    def is_enforced(self) -> bool:
        """Return whether the decoder must produce a call."""
        return bool(self.tool_name) or self.mode is ToolChoiceMode.REQUIRED


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model.

    `size_bytes` and `digest` are the size and the identity of the model's file. They are 0 and empty without a file,
    because another engine serves the model or the name belongs to a route.
    """

    name: str
    context_window: int
    capabilities: tuple[str, ...] = ()
    size_bytes: int = 0
    digest: str = ""


_FIELDS_OF_ROLE = {
    Role.SYSTEM: frozenset({"content", "said_as"}),
    Role.USER: frozenset({"content", "images", "said_as"}),
    Role.ASSISTANT: frozenset({"content", "reasoning", "tool_calls", "cut"}),
    Role.TOOL: frozenset({"content", "tool_call_id", "name"}),
}
_OPTIONAL_FIELDS = ("reasoning", "tool_calls", "tool_call_id", "name", "cut", "images", "said_as", "removed")


def check_message(message: Message, position: int, field: str = "messages") -> None:
    """Raise InvalidRequest if the message has a field that its role forbids or lacks a required field.

    `field` is the name of the list in the request, and `position` the message's position in it.
    """
    where = f"{field}[{position}] ({message.role})"
    allowed = _FIELDS_OF_ROLE[message.role]
    for name in _OPTIONAL_FIELDS:
        if getattr(message, name) and name not in allowed:
            raise InvalidRequest(f"{where} must not carry {name}")
    if message.said_as:
        require_id(f"{where}: said_as", message.said_as)
    for index, image in enumerate(message.images):
        check_image(image, f"{where}: image {index}")
    _check_calls(message, where)


def _check_calls(message: Message, where: str) -> None:
    if message.role is Role.TOOL:
        if not message.tool_call_id or not message.name:
            raise InvalidRequest(f"{where} needs tool_call_id and name")
        _check_call_id(f"{where}: tool_call_id", message.tool_call_id)
    for index, call in enumerate(message.tool_calls):
        if not call.name:
            raise InvalidRequest(f"{where}: tool_calls[{index}] has no name")
        _check_call_id(f"{where}: tool_calls[{index}].id", call.id)


def _check_call_id(field: str, call_id: str) -> None:
    """Raise InvalidRequest unless a call's id, which may come from any system, is short and printable."""
    if not 0 < len(call_id) <= MAX_CALL_ID_CHARS or not call_id.isprintable():
        raise InvalidRequest(f"{field} {call_id[:140]!r} must have 1 to {MAX_CALL_ID_CHARS} printable characters")


def check_stored_message(message: Message, position: int, field: str) -> None:
    """Raise InvalidRequest unless a message may replace a stored message: it must be well formed or removed."""
    if not message.removed:
        check_message(message, position, field)
    elif message != Message(message.role, removed=True):
        raise InvalidRequest(f"{field}[{position}] ({message.role}) is removed: it must carry its role alone")


def check_messages(messages: Sequence[Message]) -> None:
    """Raise InvalidRequest if there are no messages, or if a message is malformed."""
    if not messages:
        raise InvalidRequest("messages is empty: send at least one message, the last from the user")
    for position, message in enumerate(messages):
        check_message(message, position)
    check_count(count_images(messages))


def count_images(messages: Sequence[Message]) -> int:
    """Return the number of images in messages."""
    return sum(len(message.images) for message in messages)


def check_turn(messages: Sequence[Message]) -> None:
    """Raise InvalidRequest unless the messages are well formed and end with a tool result or a message of the user."""
    check_messages(messages)
    last = messages[-1].role
    if last not in (Role.USER, Role.TOOL):
        raise InvalidRequest(f"the last message is {last}'s: it must be the user's or a tool result")
    check_last_is_shown(messages)


def check_last_is_shown(messages: Sequence[Message]) -> None:
    """Raise InvalidRequest if the last message is empty, because the model would answer the message before it."""
    if not messages[-1].is_shown:
        raise InvalidRequest(f"messages[{len(messages) - 1}] ({messages[-1].role}) is empty: send text")
