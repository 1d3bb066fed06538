"""Ollama's API for models: `/api/tags`, `/api/ps`, `/api/show` and `/api/version`."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import Any, NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, read_object
from gateway.http.ollama.answers import OLLAMA
from gateway.http.ollama.forms import ShowForm
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form
from gateway.http.openai.models import ModelObject, find_model
from gateway.http.operations import Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.web.callers import is_key_lent
from pagantic.common.v1 import message_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest, PermissionDenied

API_VERSION = "0.12.0"  # Clients check this version before they use newer features, such as `think`.
LATEST = ":latest"  # Ollama adds this tag to a name without a tag.
_ARCHITECTURE = "pagantic"
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"
_NEVER = "9999-12-31T23:59:59Z"
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
    """A model that the caller may name. Unknown values are empty.

    A model without its own file, such as an alias, has the size 0 and a digest of its name.
    """

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: dict[str, Any]


class OllamaModelList(AnswerShape):
    """The models that the caller may name."""

    models: list[OllamaModel]


class LoadedModel(AnswerShape):
    """A model in memory. The deployment decides how long it stays there."""

    name: str
    model: str
    size: int
    digest: str
    details: dict[str, Any]
    expires_at: str
    size_vram: int
    context_length: int


class LoadedModelList(AnswerShape):
    """The models in memory."""

    models: list[LoadedModel]


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


def model_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of models."""

    async def tags(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        """List the models."""
        aliases = [message_pb2.ModelInfo(name=name) for name in settings.models if name != "*"]
        listed: OllamaModelList = {"models": [_tag(model) for model in [*await client.list_models(), *aliases]]}
        return JSONResponse(listed)

    async def ps(client: AsyncClient, request: Request, _body: bytes) -> Answer:
        """List the models in memory."""
        models = [model for model in await client.list_models() if model.digest]
        if not is_key_lent(request, settings.auth):
            with suppress(PermissionDenied):  # Only an operator may know which models are loaded; others see all.
                loaded = await _loaded_names(client)
                models = [model for model in models if model.name in loaded]
        listed: LoadedModelList = {"models": list(map(_loaded, models))}
        return JSONResponse(listed)

    async def show(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        """Show a model."""
        form = await apart(body, read_form, read_object(body), ShowForm)
        name = form.model or form.name
        if not name:
            raise InvalidRequest("model is missing: GET /api/tags lists those there are")
        model = await find_model(client, settings, await name_in_use(client, settings, name))
        return JSONResponse(naming_ignored(shown(model), form))

    async def version(_client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        """Return the version of the API."""
        return JSONResponse(OllamaVersion(version=API_VERSION))

    return [
        Operation(OLLAMA, "GET /api/tags", tags, "ollamaTags", answer=OllamaModelList, reads_stored=False),
        Operation(OLLAMA, "GET /api/ps", ps, "ollamaProcesses", answer=LoadedModelList, reads_stored=False),
        Operation(OLLAMA, "POST /api/show", show, "ollamaShow", ShowForm, ShownModel),
        Operation(OLLAMA, "GET /api/version", version, "ollamaVersion", answer=OllamaVersion, reads_stored=False),
    ]


async def name_in_use(client: AsyncClient, settings: HttpSettings, name: str) -> str:
    """Return a model's name without the tag that Ollama's clients may add, unless a model's name contains the tag."""
    if not name.endswith(LATEST) or name in settings.models:
        return name
    if any(model.name == name for model in await client.list_models()):
        return name
    return name.removesuffix(LATEST)


async def _loaded_names(client: AsyncClient) -> set[str]:
    """Return the names of the models that a replica has loaded. Raises PermissionDenied unless the caller operates."""
    return {
        model.name
        for replica in (await client.list_replicas()).replicas
        for model, state in zip(replica.models, replica.states, strict=False)
        if state.is_loaded
    }


def shown(model: ModelObject) -> ShownModel:
    """Return the facts about a model. The facts about an alias do not reveal its target."""
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


def _tag(model: message_pb2.ModelInfo) -> OllamaModel:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _UNKNOWN_TIME,
        "size": model.size_bytes,
        "digest": model.digest or sha256(model.name.encode()).hexdigest(),
        "details": _DETAILS,
    }


def _loaded(model: message_pb2.ModelInfo) -> LoadedModel:
    return {
        "name": model.name,
        "model": model.name,
        "size": model.size_bytes,
        "digest": model.digest,
        "details": _DETAILS,
        "expires_at": _NEVER,
        "size_vram": 0,
        "context_length": model.context_window,
    }
