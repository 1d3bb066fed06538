"""`/v1/models`: the models that a client may name."""

from __future__ import annotations

from typing import Literal, NotRequired

from gateway.http.bodies import AnswerShape
from gateway.http.settings import HttpSettings
from pagantic.common.v1 import message_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound


class ModelFacts(AnswerShape):
    """Facts about a served model."""

    context_window: int
    capabilities: list[str]


class ModelObject(AnswerShape):
    """A model that the caller may name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    pagantic: NotRequired[ModelFacts]


class ModelList(AnswerShape):
    """The models that the caller may name."""

    object: Literal["list"]
    data: list[ModelObject]


async def list_models(client: AsyncClient, settings: HttpSettings) -> ModelList:
    """Return the models that a client may name: the served models and the configured aliases."""
    served = await client.list_models()
    named = [name for name in settings.models if name != "*"]
    return {"object": "list", "data": [*map(_served, served), *(_model(name) for name in named)]}


async def find_model(client: AsyncClient, settings: HttpSettings, name: str) -> ModelObject:
    """Return a model that a client may name. Raises NotFound if there is no such model."""
    for model in await client.list_models():
        if model.name == name:
            return _served(model)
    if name in settings.models or "*" in settings.models:
        return _model(name)
    raise NotFound(f"there is no model {name!r}: GET /v1/models lists those there are")


def _served(model: message_pb2.ModelInfo) -> ModelObject:
    served = _model(model.name)
    served["pagantic"] = {"context_window": model.context_window, "capabilities": list(model.capabilities)}
    return served


def _model(name: str) -> ModelObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "pagantic"}
