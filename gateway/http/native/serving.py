"""Operations over HTTP: the replicas that serve models, loading and unloading, and the pulled models."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.native.executions import plain
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient
from pagantic_common.models.catalog import catalog
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import models_folder

# The source may be a path of this machine, and is left out.
_OF_PULLED = {"name", "size_bytes", "context_tokens", "capabilities", "license", "pulled_at"}
_OF_CATALOG = {"name", "title", "size_bytes", "context_tokens", "license"}


def serving_routes() -> list[Route]:
    """Return the paths of replicas and of models; the paths below a model come before `/v1/models/{name}`."""
    return [
        Route("/v1/replicas", _list, methods=["GET"]),
        Route("/v1/models/{name:path}/load", _load, methods=["POST"]),
        Route("/v1/models/{name:path}/unload", _unload, methods=["POST"]),
        Route("/v1/pulled-models", _pulled, methods=["GET"]),
    ]


async def _list(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
    return JSONResponse(plain(await client.list_replicas()))


async def _load(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    return JSONResponse(plain(await client.load_model(request.path_params["name"])))


async def _unload(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    return JSONResponse(plain(await client.unload_model(request.path_params["name"])))


async def _pulled(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
    await client.list_replicas()  # raises for callers who are not operators
    return JSONResponse(await asyncio.to_thread(_of_this_machine))


def _of_this_machine() -> dict[str, Any]:
    """Return the models that were pulled on this machine, and the models of the catalog."""
    pulled = ModelFolder(models_folder()).models()
    return {
        "pulled": [model.model_dump(mode="json", include=_OF_PULLED) for model in pulled],
        "catalog": [model.model_dump(mode="json", include=_OF_CATALOG) for model in catalog().values()],
    }
