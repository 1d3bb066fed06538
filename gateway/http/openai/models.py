"""`/v1/models`: the models that a client may name."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic.common.v1 import message_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound, PermissionDenied


def model_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of models."""

    async def every(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        return JSONResponse(await list_models(client, settings))

    async def one(client: AsyncClient, request: Request, _body: bytes) -> Answer:
        return JSONResponse(await find_model(client, settings, request.path_params["name"]))

    async def delete(client: AsyncClient, request: Request, _body: bytes) -> Answer:
        model = await find_model(client, settings, request.path_params["name"])
        raise PermissionDenied(
            f"model {model['id']!r} cannot be deleted by a request: models are the deployment's, so have its operator "
            "change MODEL_PATH, ROUTES or REMOTES of the inference service, or MODELS of this gateway"
        )

    return [
        Route("/v1/models", every, methods=["GET"]),
        Route("/v1/models/{name:path}", one, methods=["GET"]),
        Route("/v1/models/{name:path}", delete, methods=["DELETE"]),
    ]


async def list_models(client: AsyncClient, settings: HttpSettings) -> dict[str, Any]:
    """Return the models that a client may name: the served models, and their aliases."""
    served = await client.list_models()
    named = [name for name in settings.models if name != "*"]
    return {"object": "list", "data": [*map(_served, served), *(_model(name) for name in named)]}


async def find_model(client: AsyncClient, settings: HttpSettings, name: str) -> dict[str, Any]:
    """Return a model that a client may name; raises NotFound."""
    for model in await client.list_models():
        if model.name == name:
            return _served(model)
    if name in settings.models or "*" in settings.models:
        return _model(name)
    raise NotFound(f"there is no model {name!r}: GET /v1/models lists those there are")


def _served(model: message_pb2.ModelInfo) -> dict[str, Any]:
    extension = {"context_window": model.context_window, "capabilities": list(model.capabilities)}
    return {**_model(model.name), "pagantic": extension}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "pagantic"}
