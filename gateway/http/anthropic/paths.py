"""The paths of Anthropic's API."""

from __future__ import annotations

from starlette.routing import Route

from gateway.http.anthropic.messages import message_routes
from gateway.http.anthropic.models import own_model_routes
from gateway.http.settings import HttpSettings


def anthropic_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of this API, which come before the paths of OpenAI's API."""
    return [*message_routes(settings), *own_model_routes(settings)]
