"""Converts Ollama's requests into the form of `/v1/chat/completions` or `/v1/completions`, which is then translated."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.http.ollama.forms import GenerateForm, OllamaChatForm, OllamaForm, OllamaTurnForm, OptionsForm
from gateway.http.openai.completions.requests import text_request_of
from gateway.http.openai.forms import AnswerForm, ChatForm, read_form
from gateway.http.openai.requests import request_of
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.images import media_type_of

# Chats have these options under the same names.
_SHARED_OPTIONS = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")
# Each option sets a hint of the orchestrator.
_HINTS = {"top_k": "top_k", "min_p": "min_p", "repeat_penalty": "repetition_penalty"}


def chat_request_of(form: OllamaChatForm, alias: str, call_s: float) -> execution_pb2.SystemRequest:
    """Return the request for a form of `/api/chat`. Raises InvalidRequest if the form uses an unsupported feature."""
    tools = [tool.model_dump(exclude_none=True) for tool in form.tools or ()] or None
    return _request_of(form, {"messages": list(_messages(form.messages or ())), "tools": tools}, alias, call_s)


def generate_request_of(form: GenerateForm, alias: str, call_s: float) -> execution_pb2.SystemRequest:
    """Return the request for a form of `/api/generate`. Raises InvalidRequest if a feature is unsupported."""
    if form.suffix:
        raise InvalidRequest("suffix is set: models here do not fill in texts, so leave suffix out")
    if form.raw:
        return _raw_request_of(form, alias, call_s)
    messages: list[dict[str, Any]] = [{"role": "user", "content": _content(form.prompt, form.images, "images")}]
    if form.system:
        messages.insert(0, {"role": "system", "content": form.system})
    return _request_of(form, {"messages": messages}, alias, call_s)


def _raw_request_of(form: GenerateForm, alias: str, call_s: float) -> execution_pb2.SystemRequest:
    if form.images:
        raise InvalidRequest("images and raw are both set: a raw prompt has no place for an image, so leave raw out")
    if form.system:
        raise InvalidRequest("system and raw are both set: write the system prompt into the prompt, or leave raw out")
    request = text_request_of(read_form(_answer_fields(form), AnswerForm), form.prompt, alias, call_s)
    _set_hints(request.hints, form)
    return request


def _request_of(form: OllamaForm, fields: dict[str, Any], alias: str, call_s: float) -> execution_pb2.SystemRequest:
    request = request_of(read_form(_answer_fields(form) | fields, ChatForm), alias, call_s)
    _set_hints(request.hints, form)
    return request


def _answer_fields(form: OllamaForm) -> dict[str, Any]:
    """Return the fields of a form that shape the answer, under the names in OpenAI's API."""
    options = form.options or OptionsForm()
    return {
        "model": form.model,
        "response_format": _format(form.format),
        "pagantic": form.pagantic,
        "max_tokens": max(options.num_predict or 0, 0),  # If the request sets no limit, the default limit applies.
        **{name: getattr(options, name) for name in _SHARED_OPTIONS},
    }


def _set_hints(hints: execution_pb2.ExecutionHints, form: OllamaForm) -> None:
    """Set the hints that OpenAI's API has no fields for."""
    options = form.options or OptionsForm()
    for option, hint in _HINTS.items():
        if (value := getattr(options, option)) is not None:
            setattr(hints, hint, value)
    if form.think is not None:
        mode = generation_pb2.REASONING_MODE_ON if form.think else generation_pb2.REASONING_MODE_OFF
        hints.reasoning.mode = mode


def _format(asked: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if asked is None or asked == "":
        return None
    if asked == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked}}


def _messages(messages: Sequence[OllamaTurnForm]) -> Iterator[dict[str, Any]]:
    """Yield the messages in the form of chats."""
    waiting: list[tuple[str, str]] = []  # The ids and names of the calls that have no result yet.
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        content = _content(message.content or "", message.images, f"{place}.images")
        if message.role == "tool":
            yield {"role": "tool", "content": content, "tool_call_id": _answered(message, waiting, place)}
            continue
        calls = _calls(message, index)
        waiting += [(call["id"], call["function"]["name"]) for call in calls]
        yield {
            "role": message.role,
            "content": content,
            "reasoning_content": message.thinking,
            "tool_calls": calls,
        }


def _calls(message: OllamaTurnForm, index: int) -> list[dict[str, Any]]:
    """Return the calls of a message. A call without an id gets an id from its position."""
    return [
        {
            "id": call.id or f"call_{index}_{position}",
            "function": {
                "name": call.function.name,
                "arguments": json.dumps(call.function.arguments or {}, ensure_ascii=False),
            },
        }
        for position, call in enumerate(message.tool_calls or ())
    ]


def _answered(message: OllamaTurnForm, waiting: list[tuple[str, str]], place: str) -> str:
    """Return the id of the call that a result answers, and remove that call from `waiting`.

    A result names its call, its tool, or neither. A result that names neither answers the first waiting call.
    """
    for call in waiting:
        if message.tool_call_id in (None, call[0]) and message.tool_name in (None, call[1]):
            waiting.remove(call)
            return call[0]
    named = message.tool_call_id or message.tool_name or ""
    raise InvalidRequest(f"{place} is the result of {named[:128]!r}: no call of a message before waits for it")


def _content(text: str, images: Sequence[str] | None, place: str) -> Any:
    """Return a text and its images in the form of chats, with the images first."""
    if not images:
        return text
    parts = [_image(image, f"{place}[{index}]") for index, image in enumerate(images)]
    return [*parts, {"type": "text", "text": text}]


def _image(data: str, place: str) -> dict[str, Any]:
    """Return an image in the form of chats. The first bytes determine its type."""
    try:
        media_type = media_type_of(base64.b64decode(data[:16]))
    except ValueError:
        media_type = ""
    if not media_type:
        raise InvalidRequest(f"{place} is no PNG, JPEG, WebP or GIF in base64")
    return {"type": "image_url", "image_url": f"data:{media_type};base64,{data}"}
