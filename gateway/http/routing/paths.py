"""The paths of the gateway."""

from __future__ import annotations

from gateway.http.anthropic.paths import anthropic_routes
from gateway.http.document.operations import Access, DescribedRoute, Operation, Tag, describe
from gateway.http.document.serving import document_routes
from gateway.http.document.tables.every import OPERATIONS
from gateway.http.native.console.serving import console_routes
from gateway.http.native.paths import own_routes
from gateway.http.ollama.paths import ollama_routes
from gateway.http.openai.paths import openai_routes
from gateway.http.pooling.paths import pooling_routes
from gateway.http.settings import HttpSettings

_CONSOLE = Operation(Tag.DOCUMENT, "getConsole", "A file of the console.", text_type="text/html", access=Access.OPEN)


def served_routes(settings: HttpSettings) -> list[DescribedRoute]:
    """Return every path, including the console's paths, which the document leaves out."""
    console = [DescribedRoute(route, "GET", _CONSOLE) for route in console_routes(settings)]
    return [*routes_of(settings), *console]


def routes_of(settings: HttpSettings) -> list[DescribedRoute]:
    """Return the paths of the APIs, each with its description."""

    def every() -> list[DescribedRoute]:
        return described

    routes = [
        *anthropic_routes(settings),
        *ollama_routes(settings),
        *openai_routes(settings),
        *pooling_routes(settings),
        *own_routes(settings),
        *document_routes(every, settings),
    ]
    described = describe(routes, OPERATIONS)
    return described
