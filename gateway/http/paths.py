"""The paths of the gateway."""

from __future__ import annotations

from gateway.http.anthropic.paths import anthropic_routes
from gateway.http.approvals import approval_routes
from gateway.http.document.operations import DescribedRoute
from gateway.http.document.serving import document_routes
from gateway.http.native import native_routes
from gateway.http.ollama.paths import ollama_routes
from gateway.http.openai.paths import openai_routes
from gateway.http.pooling.embeddings import embedding_routes
from gateway.http.pooling.reranking import reranking_routes
from gateway.http.probes import PROBES
from gateway.http.settings import HttpSettings


def routes_of(settings: HttpSettings) -> list[DescribedRoute]:
    """Return all paths, and those of the document of them all."""
    routes = [
        *anthropic_routes(settings),
        *ollama_routes(settings),
        *openai_routes(settings),
        *embedding_routes(settings),
        *reranking_routes(settings),
        *native_routes(settings),
        *approval_routes(),
    ]
    return [*routes, *document_routes([*routes, *PROBES], settings)]
