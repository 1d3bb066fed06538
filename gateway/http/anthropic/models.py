"""`/v1/models` for clients of Anthropic's API, which a header distinguishes from OpenAI's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import Scope

from gateway.http.openai.models import find_model, list_models
from gateway.http.openai.pages import list_of
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient

VERSION_HEADER = "anthropic-version"
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"


class _OwnRoute(Route):
    """A path for clients of this API alone: a later route answers the others."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether this route answers a request."""
        if VERSION_HEADER not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


def own_model_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of models, which come before the paths of OpenAI's API."""

    async def every(client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        listed = await list_models(client, settings)
        page = list_of([_model(model) for model in listed["data"]])
        del page["object"]
        return JSONResponse(page)

    async def one(client: AsyncClient, request: Request, _body: bytes) -> Answer:
        return JSONResponse(_model(await find_model(client, settings, request.path_params["name"])))

    return [_OwnRoute("/v1/models", every, methods=["GET"]), _OwnRoute("/v1/models/{name:path}", one, methods=["GET"])]


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": _UNKNOWN_TIME,
        "lifecycle": "active",
    }
    if "pagantic" in model:
        fields |= {"max_input_tokens": model["pagantic"]["context_window"], "pagantic": model["pagantic"]}
    return fields
