"""`/v1/models`: the models that a client may name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NotRequired

from starlette.requests import Request

from gateway.http.bodies import AnswerShape
from gateway.http.settings import HttpSettings
from gateway.web.callers import api_key_of
from pagantic.common.v1 import message_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound, PaganticError

KEPT_S = 30.0
MAX_CALLERS = 1024


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


class DefaultName:
    """Finds the name of the model that answers requests without a name. Clients may send this name back.

    Args:
    settings: The settings that define the model names.
    capability: The capability of the model, such as `chat`.
    monotonic_s: The clock. A name is kept for 30 s for each caller, because callers may be permitted different models.
    """

    def __init__(
        self, settings: HttpSettings, capability: str = "chat", monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._capability = capability
        self._monotonic_s = monotonic_s
        self._kept: dict[str, tuple[str, float]] = {}

    async def or_sent(self, sent: str, client: AsyncClient, request: Request) -> str:
        """Return the sent name or, if it is empty, the name of the default model; empty if that name is unknown."""
        if name := sent or self._settings.alias_of(""):
            return name
        caller, now_s = api_key_of(request), self._monotonic_s()
        name, until_s = self._kept.get(caller, ("", now_s))
        if until_s > now_s:
            return name
        try:
            models = await client.list_models()
        except PaganticError:  # The request itself will report the reason.
            return ""
        name = next((model.name for model in models if self._capability in model.capabilities), "")
        if len(self._kept) >= MAX_CALLERS:
            self._kept.clear()
        self._kept[caller] = (name, now_s + KEPT_S)
        return name


def _served(model: message_pb2.ModelInfo) -> ModelObject:
    served = _model(model.name)
    served["pagantic"] = {"context_window": model.context_window, "capabilities": list(model.capabilities)}
    return served


def _model(name: str) -> ModelObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "pagantic"}
