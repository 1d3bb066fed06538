"""The models that clients of Ollama's API may name, and the version of that API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.ollama.forms import ShowForm
from gateway.http.openai.forms import read_form
from gateway.http.openai.models import find_model, list_models
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest

API_VERSION = "0.12.0"  # Clients request it before they use features that earlier versions lacked, such as `think`.
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
# Ollama's names of the capabilities that the inference service reports.
_CAPABILITIES = {"chat": "completion", "tools": "tools", "embed": "embedding"}


def model_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of models and of the version."""

    async def tags(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        listed = await list_models(client, settings)
        return JSONResponse({"models": [_tag(model["id"]) for model in listed["data"]]})

    async def show(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        form = read_form(read_object(body), ShowForm)
        name = form.model or form.name
        if not name:
            raise InvalidRequest("model is missing: GET /api/tags lists those there are")
        return JSONResponse(shown(await find_model(client, settings, name)))

    async def version(_client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        return JSONResponse({"version": API_VERSION})

    return [
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        Route("/api/version", version, methods=["GET"]),
    ]


def shown(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a model; an alias reveals nothing about its target."""
    extension = model.get("pagantic", {"capabilities": ["chat"]})
    info: dict[str, Any] = {"general.architecture": _ARCHITECTURE, "general.basename": model["id"]}
    if "context_window" in extension:
        info[f"{_ARCHITECTURE}.context_length"] = extension["context_window"]
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": _UNKNOWN_TIME,
        "details": _DETAILS,
        "model_info": info,
        "capabilities": [_CAPABILITIES[name] for name in extension["capabilities"] if name in _CAPABILITIES],
    }


def _tag(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": _UNKNOWN_TIME,
        "size": 0,
        "digest": "",
        "details": _DETAILS,
    }
