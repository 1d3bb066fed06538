"""Serves the tools, replicas and models of the deployment over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape
from gateway.http.native.executions import plain
from gateway.http.operations import NATIVE, Access, Operation
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient
from pagantic_common.models.catalog import catalog
from pagantic_common.models.folder import ModelFolder
from pagantic_common.models.settings import models_folder


class ModelOfPull(AnswerShape):
    """A pulled model."""

    name: str
    size_bytes: int
    context_tokens: int
    capabilities: list[str]
    license: str
    pulled_at: str


class ModelOfCatalog(AnswerShape):
    """A model that `pagantic pull` knows by a short name."""

    name: str
    title: str
    size_bytes: int
    context_tokens: int
    license: str


class ModelsOfMachine(AnswerShape):
    """The pulled models of a machine, and the catalog."""

    pulled: list[ModelOfPull]
    catalog: list[ModelOfCatalog]


def deployment_operations() -> list[Operation]:
    """Return the operations of tools, replicas and models."""
    return [
        Operation(NATIVE, "GET /v1/tools", _tools, "listTools", answer=pb.ListToolsResponse, reads_stored=False),
        Operation(
            NATIVE,
            "GET /v1/replicas",
            _replicas,
            "listReplicas",
            answer=pb.ListReplicasResponse,
            access=Access.ADMIN,
            reads_stored=False,
        ),
        Operation(
            NATIVE,
            "POST /v1/models/{name:path}/load",
            _load,
            "loadModel",
            answer=pb.LoadModelResponse,
            access=Access.ADMIN,
        ),
        Operation(
            NATIVE,
            "POST /v1/models/{name:path}/unload",
            _unload,
            "unloadModel",
            answer=pb.UnloadModelResponse,
            access=Access.ADMIN,
        ),
        Operation(
            NATIVE,
            "GET /v1/pulled-models",
            _pulled,
            "listPulledModels",
            answer=ModelsOfMachine,
            access=Access.ADMIN,
            reads_stored=False,
        ),
    ]


async def _tools(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
    """List the tools that the caller's requests may name."""
    return JSONResponse({"tools": [plain(tool) for tool in await client.list_tools()]})


async def _replicas(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
    """List the replicas that serve models, with their loads. Needs the scope admin."""
    return JSONResponse(plain(await client.list_replicas()))


async def _load(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Load a model in every replica that serves it. Needs the scope admin."""
    return JSONResponse(plain(await client.load_model(request.path_params["name"])))


async def _unload(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Unload a model in every replica that serves it. Needs the scope admin."""
    return JSONResponse(plain(await client.unload_model(request.path_params["name"])))


async def _pulled(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
    """List the models pulled on the gateway's machine and the models of the catalog. Needs the scope admin."""
    await client.list_replicas()  # Raises an error if the caller is not an operator.
    return JSONResponse(await asyncio.to_thread(_of_this_machine))


def _of_this_machine() -> dict[str, Any]:
    """Return the models pulled on this machine, and the models in the catalog."""
    # The shape omits the source, which may be a path on this machine.
    of_pulled, of_catalog = set(ModelOfPull.__annotations__), set(ModelOfCatalog.__annotations__)
    pulled = ModelFolder(models_folder()).models()
    return {
        "pulled": [model.model_dump(mode="json", include=of_pulled) for model in pulled],
        "catalog": [model.model_dump(mode="json", include=of_catalog) for model in catalog().values()],
    }
