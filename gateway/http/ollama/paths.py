"""The operations of Ollama's API: chats, texts, the models, and the version."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, read_object, take_request_id
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
from gateway.http.ollama.forms import GenerateForm, OllamaChatForm, OllamaForm, ShowForm
from gateway.http.ollama.requests import chat_request_of, generate_request_of
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form
from gateway.http.openai.models import ModelObject, find_model, list_models
from gateway.http.operations import Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import encode_lines, send_answer
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest

API_VERSION = "0.12.0"  # Clients check this version before they use newer features, such as `think`.
_ARCHITECTURE = "pagantic"
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"
_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
# Maps the capabilities that the inference service reports to Ollama's names.
_CAPABILITIES = {"chat": "completion", "tools": "tools", "embed": "embedding"}


class OllamaModel(AnswerShape):
    """A model that the caller may name. Unknown values are empty."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: dict[str, Any]


class OllamaModelList(AnswerShape):
    """The models that the caller may name."""

    models: list[OllamaModel]


class ShownModel(AnswerShape):
    """Facts about a model."""

    modelfile: str
    parameters: str
    template: str
    modified_at: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]
    pagantic: NotRequired[IgnoredFields]


class OllamaVersion(AnswerShape):
    """The version of the API."""

    version: str


def ollama_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of this API."""

    async def chat(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer a conversation."""
        form = await apart(body, read_form, read_object(body), OllamaChatForm)
        made = await apart(body, chat_request_of, form, settings.alias_of(form.model), settings.call_s)
        return await _answer(client, request, form, made)

    async def generate(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer a prompt."""
        form = await apart(body, read_form, read_object(body), GenerateForm)
        made = await apart(body, generate_request_of, form, settings.alias_of(form.model), settings.call_s)
        return await _answer(client, request, form, made)

    async def tags(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        """List the models."""
        models = await list_models(client, settings)
        listed: OllamaModelList = {"models": [_tag(model["id"]) for model in models["data"]]}
        return JSONResponse(listed)

    async def show(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        """Show a model."""
        form = read_form(read_object(body), ShowForm)
        name = form.model or form.name
        if not name:
            raise InvalidRequest("model is missing: GET /api/tags lists those there are")
        return JSONResponse(naming_ignored(shown(await find_model(client, settings, name)), form))

    async def version(_client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        """Return the version of the API."""
        return JSONResponse(OllamaVersion(version=API_VERSION))

    return [
        Operation(OLLAMA, "POST /api/chat", chat, "ollamaChat", OllamaChatForm, OllamaChat, OllamaChatLine),
        Operation(OLLAMA, "POST /api/generate", generate, "ollamaGenerate", GenerateForm, OllamaText, OllamaTextLine),
        Operation(OLLAMA, "GET /api/tags", tags, "ollamaTags", answer=OllamaModelList),
        Operation(OLLAMA, "POST /api/show", show, "ollamaShow", ShowForm, ShownModel),
        Operation(OLLAMA, "GET /api/version", version, "ollamaVersion", answer=OllamaVersion),
    ]


async def _answer(client: AsyncClient, request: Request, form: OllamaForm, sent: execution_pb2.SystemRequest) -> Answer:
    take_request_id(sent, request)
    created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    head = LineHead(form.model, created_at, isinstance(form, OllamaChatForm), form.ignored)
    if form.streams:
        quiet = encode_lines([head.line()])
        return send_answer(client.stream(sent), AnswerLines(head), sent.request_id, encode=encode_lines, quiet=quiet)
    return JSONResponse(whole_of(head, completed(await client.execute(sent))))


def shown(model: ModelObject) -> ShownModel:
    """Return the facts about a model. For an alias, nothing about its target is revealed."""
    info: dict[str, Any] = {"general.architecture": _ARCHITECTURE, "general.basename": model["id"]}
    capabilities = ["chat"]
    if "pagantic" in model:
        capabilities = model["pagantic"]["capabilities"]
        info[f"{_ARCHITECTURE}.context_length"] = model["pagantic"]["context_window"]
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": _UNKNOWN_TIME,
        "details": _DETAILS,
        "model_info": info,
        "capabilities": [_CAPABILITIES[name] for name in capabilities if name in _CAPABILITIES],
    }


def _tag(name: str) -> OllamaModel:
    return {
        "name": name,
        "model": name,
        "modified_at": _UNKNOWN_TIME,
        "size": 0,
        "digest": "",
        "details": _DETAILS,
    }
