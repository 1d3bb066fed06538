"""The operations of Ollama's API. This module implements the operations of chats and texts."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.http.bodies import apart, read_object, take_request_id
from gateway.http.ollama.answers import (
    OLLAMA,
    AnswerLines,
    LineHead,
    OllamaChat,
    OllamaChatLine,
    OllamaText,
    OllamaTextLine,
    whole_of,
)
from gateway.http.ollama.embedding import embedding_operations
from gateway.http.ollama.forms import GenerateForm, OllamaChatForm, OllamaForm
from gateway.http.ollama.models import model_operations, name_in_use
from gateway.http.ollama.requests import chat_request_of, generate_request_of
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import read_form
from gateway.http.openai.models import DefaultName, find_model
from gateway.http.operations import JSON_LINES, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import encode_lines, send_answer
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient

_ZERO = re.compile(r"-?0+(\.0*)?(ns|us|µs|ms|s|m|h)?")  # A duration of zero in Go's format.


def ollama_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of this API."""
    default_name = DefaultName(settings)

    async def chat(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer a conversation. Without messages, confirm that the model is there."""
        form = await apart(body, read_form, read_object(body), OllamaChatForm)
        name = await name_in_use(client, settings, form.model)
        head = _head_of(form, await default_name.or_sent(form.model, client, request))
        if not form.messages:
            return await _confirm(client, settings, form, name, head)
        made = await apart(body, chat_request_of, form, settings.alias_of(name), settings.call_s)
        return await _answer(client, request, form, made, head)

    async def generate(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer a prompt. Without a prompt, confirm that the model is there."""
        form = await apart(body, read_form, read_object(body), GenerateForm)
        name = await name_in_use(client, settings, form.model)
        head = _head_of(form, await default_name.or_sent(form.model, client, request))
        if not form.prompt and not form.images:
            return await _confirm(client, settings, form, name, head)
        made = await apart(body, generate_request_of, form, settings.alias_of(name), settings.call_s)
        return await _answer(client, request, form, made, head)

    return [
        Operation(OLLAMA, "POST /api/chat", chat, "ollamaChat", OllamaChatForm, OllamaChat, OllamaChatLine),
        Operation(OLLAMA, "POST /api/generate", generate, "ollamaGenerate", GenerateForm, OllamaText, OllamaTextLine),
        *embedding_operations(settings),
        *model_operations(settings),
    ]


async def _confirm(client: AsyncClient, settings: HttpSettings, form: OllamaForm, name: str, head: LineHead) -> Answer:
    """Return the answer to a request that loads or, with a `keep_alive` of 0, unloads a model.

    Nothing is loaded or unloaded, because the deployment decides that. Raises NotFound for an unknown model.
    """
    if name:
        await find_model(client, settings, name)
    keep_alive = (form.model_extra or {}).get("keep_alive")
    is_unload = keep_alive is not None and _ZERO.fullmatch(str(keep_alive)) is not None
    line = head.confirmed("unload" if is_unload else "load")
    if form.streams:
        return Response(encode_lines([line]), media_type=JSON_LINES)
    return JSONResponse(line)


async def _answer(
    client: AsyncClient, request: Request, form: OllamaForm, sent: execution_pb2.SystemRequest, head: LineHead
) -> Answer:
    take_request_id(sent, request)
    if form.streams:
        quiet = encode_lines([head.line()])
        return send_answer(client.stream(sent), AnswerLines(head), sent.request_id, encode=encode_lines, quiet=quiet)
    return JSONResponse(whole_of(head, completed(await client.execute(sent))))


def _head_of(form: OllamaForm, name: str) -> LineHead:
    created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return LineHead(name, created_at, isinstance(form, OllamaChatForm), form.ignored)
