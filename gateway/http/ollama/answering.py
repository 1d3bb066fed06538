"""`/api/chat` and `/api/generate`: runs the requests of Ollama's clients."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object, take_request_id
from gateway.http.ollama.answers import LineHead, whole_of
from gateway.http.ollama.forms import GenerateForm, OllamaChatForm, OllamaForm
from gateway.http.ollama.requests import chat_request_of, generate_request_of
from gateway.http.ollama.stream import AnswerLines
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import read_form
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import encode_lines, send_answer
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient


def answer_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths that make answers."""

    async def chat(client: AsyncClient, request: Request, body: bytes) -> Answer:
        form = read_form(read_object(body), OllamaChatForm)
        made = chat_request_of(form, settings.alias_of(form.model), settings.call_s)
        return await _answer(client, request, form, made)

    async def generate(client: AsyncClient, request: Request, body: bytes) -> Answer:
        form = read_form(read_object(body), GenerateForm)
        made = generate_request_of(form, settings.alias_of(form.model), settings.call_s)
        return await _answer(client, request, form, made)

    return [Route("/api/chat", chat, methods=["POST"]), Route("/api/generate", generate, methods=["POST"])]


async def _answer(client: AsyncClient, request: Request, form: OllamaForm, sent: execution_pb2.SystemRequest) -> Answer:
    take_request_id(sent, request)
    created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    head = LineHead(form.model, created_at, isinstance(form, OllamaChatForm), form.ignored)
    if form.streams:
        quiet = encode_lines([head.line()])
        return send_answer(client.stream(sent), AnswerLines(head), sent.request_id, encode=encode_lines, quiet=quiet)
    return JSONResponse(whole_of(head, completed(await client.execute(sent))))
