"""Converts messages, tools and usage between protobuf messages and domain types."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.common.v1 import message_pb2, usage_pb2
from pagantic_common.codec.fields import EnumCodec, optional
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.images import Image, file_of, image_of, join_parts, split_content
from pagantic_common.domain.messages import (
    Message,
    ModelInfo,
    Role,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    ToolDefinition,
    ToolProgress,
    ToolResult,
    ToolSafety,
)
from pagantic_common.domain.usage import TokenUsage

_ROLES = EnumCodec(message_pb2.Role, Role, "ROLE_", unknown=None)
SAFETIES = EnumCodec(message_pb2.ToolSafety, ToolSafety, "TOOL_SAFETY_", unknown=ToolSafety.EXTERNAL)
_CHOICE_MODES = EnumCodec(message_pb2.ToolChoiceMode, ToolChoiceMode, "TOOL_CHOICE_MODE_", unknown=None)

MAX_DURATION_S = 366 * 86_400
NANOS_PER_S = 1_000_000_000


def timestamp_to_proto(moment: datetime) -> Timestamp:
    """Encode a timestamp."""
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def duration_to_proto(seconds: float) -> Duration:
    """Encode a number of seconds as a Duration."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def optional_duration_to_proto(seconds: float | None) -> Duration | None:
    """Encode a number of seconds as a Duration. None leaves the field unset."""
    if seconds is None:
        return None
    return duration_to_proto(seconds)


def duration_from_proto(duration: Duration, field: str = "a duration") -> float:
    """Decode to seconds. Raises InvalidRequest, naming the field, for a negative duration or more than 366 days."""
    seconds = duration.seconds + duration.nanos / 1e9
    if not 0 <= seconds <= MAX_DURATION_S or not 0 <= duration.nanos < NANOS_PER_S:
        raise InvalidRequest(f"{field} is {seconds:g} s: it must be from 0 to {MAX_DURATION_S} s, which is 366 days")
    return seconds


def tool_call_to_proto(call: ToolCall) -> message_pb2.ToolCall:
    """Encode a tool call."""
    return message_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)


def tool_call_from_proto(call: message_pb2.ToolCall) -> ToolCall:
    """Decode a tool call."""
    return ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)


def message_to_proto(message: Message) -> message_pb2.Message:
    """Encode a message."""
    return message_pb2.Message(
        role=_ROLES.to_proto(message.role),
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=[tool_call_to_proto(call) for call in message.tool_calls],
        tool_call_id=message.tool_call_id,
        name=message.name,
        cut=message.cut,
        parts=_parts_to_proto(message),
        said_as=message.said_as,
        removed=message.removed,
    )


def _parts_to_proto(message: Message) -> list[message_pb2.ContentPart]:
    if not message.images:
        return []
    return [_part_to_proto(part) for part in split_content(message.content, message.images)]


def _part_to_proto(part: str | Image) -> message_pb2.ContentPart:
    if isinstance(part, str):
        return message_pb2.ContentPart(text=part)
    return message_pb2.ContentPart(image=message_pb2.Image(media_type=part.media_type, data=file_of(part)))


def message_from_proto(message: message_pb2.Message) -> Message:
    """Decode a message.

    Raises InvalidRequest for an unset or unknown role, and for parts that differ from the content.
    """
    role = _ROLES.from_proto(message.role)
    if role is None:
        raise _unknown_role(message.role)
    content, images = join_parts([_part_from_proto(part) for part in message.parts])
    if message.parts and message.content not in ("", content):
        raise InvalidRequest("a message's content is not the texts of its parts: leave content empty, or parts")
    return Message(
        role=role,
        content=content or message.content,
        reasoning=message.reasoning,
        tool_calls=tuple(tool_call_from_proto(call) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
        cut=message.cut,
        images=images,
        said_as=message.said_as,
        removed=message.removed,
    )


def _part_from_proto(part: message_pb2.ContentPart) -> str | Image:
    match part.WhichOneof("part"):
        case None:
            raise InvalidRequest("a part of a message is empty: set its text or its image")
        case "text":
            return part.text
        case _:
            return image_of(part.image.media_type, part.image.data)


def _unknown_role(number: int) -> InvalidRequest:
    choices = ", ".join(f"ROLE_{role.name}" for role in Role)
    if not number:
        return InvalidRequest(f"a message's role is not set: use one of {choices}")
    return InvalidRequest(f"there is no message role {number}: use one of {choices}")


def tool_definition_to_proto(tool: ToolDefinition) -> message_pb2.ToolDefinition:
    """Encode a tool definition."""
    return message_pb2.ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json=tool.parameters_json,
        safety=SAFETIES.to_proto(tool.safety),
        idempotent=tool.idempotent,
        timeout=optional_duration_to_proto(tool.timeout_s),
        requires=tool.requires,
    )


def tool_definition_from_proto(tool: message_pb2.ToolDefinition) -> ToolDefinition:
    """Decode a tool definition. Raises InvalidRequest if the timeout is out of range."""
    timeout_s = None
    if tool.HasField("timeout"):
        timeout_s = duration_from_proto(tool.timeout, f"the timeout of tool {tool.name[:80]!r}")
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json=tool.parameters_json,
        safety=SAFETIES.from_proto(tool.safety),
        idempotent=tool.idempotent,
        timeout_s=timeout_s,
        requires=tuple(tool.requires),
    )


def tool_progress_to_proto(progress: ToolProgress) -> message_pb2.ToolProgress:
    """Encode a progress report."""
    return message_pb2.ToolProgress(progress=progress.progress, total=progress.total, message=progress.message)


def tool_progress_from_proto(progress: message_pb2.ToolProgress) -> ToolProgress:
    """Decode a progress report."""
    return ToolProgress(progress.progress, optional(progress, "total"), progress.message)


def tool_result_to_proto(result: ToolResult) -> message_pb2.ToolResult:
    """Encode a tool result."""
    return message_pb2.ToolResult(
        call_id=result.call_id, name=result.name, content=result.content, is_error=result.is_error
    )


def tool_choice_to_proto(choice: ToolChoice) -> message_pb2.ToolChoice:
    """Encode a tool choice."""
    if choice.tool_name:
        return message_pb2.ToolChoice(tool_name=choice.tool_name)
    return message_pb2.ToolChoice(mode=_CHOICE_MODES.to_proto(choice.mode))


def tool_choice_from_proto(choice: message_pb2.ToolChoice) -> ToolChoice:
    """Decode a tool choice. An unset mode becomes AUTO. Raises InvalidRequest for an unknown mode."""
    mode = _CHOICE_MODES.from_proto(choice.mode)
    if choice.mode and mode is None:
        raise InvalidRequest(f"there is no tool choice mode {choice.mode}")
    return ToolChoice(mode=mode or ToolChoiceMode.AUTO, tool_name=choice.tool_name)


def model_info_to_proto(model: ModelInfo) -> message_pb2.ModelInfo:
    """Encode a model's description."""
    return message_pb2.ModelInfo(
        name=model.name,
        context_window=model.context_window,
        capabilities=model.capabilities,
        size_bytes=model.size_bytes,
        digest=model.digest,
    )


def model_info_from_proto(model: message_pb2.ModelInfo) -> ModelInfo:
    """Decode a model's description."""
    return ModelInfo(model.name, model.context_window, tuple(model.capabilities), model.size_bytes, model.digest)


def usage_to_proto(usage: TokenUsage) -> usage_pb2.TokenUsage:
    """Encode usage."""
    return usage_pb2.TokenUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        output_tokens=usage.output_tokens,
        context_tokens=usage.context_tokens,
        context_window=usage.context_window,
        decode_seconds=usage.decode_seconds,
        tokens_per_second=usage.tokens_per_second,
    )


def optional_usage_to_proto(usage: TokenUsage) -> usage_pb2.TokenUsage | None:
    """Encode usage. The field stays unset if the usage is empty."""
    if usage == TokenUsage():
        return None
    return usage_to_proto(usage)


def usage_from_proto(usage: usage_pb2.TokenUsage) -> TokenUsage:
    """Decode usage."""
    return TokenUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        output_tokens=usage.output_tokens,
        context_tokens=usage.context_tokens,
        context_window=usage.context_window,
        decode_seconds=usage.decode_seconds,
    )
