"""The paths of Ollama's API."""

from __future__ import annotations

from starlette.routing import Route

from gateway.http.ollama.answering import answer_routes
from gateway.http.ollama.models import model_routes
from gateway.http.settings import HttpSettings


def ollama_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of this API."""
    return [*answer_routes(settings), *model_routes(settings)]
