"""The paths of vectors and rankings."""

from __future__ import annotations

from starlette.routing import Route

from gateway.http.pooling.embeddings import embedding_routes
from gateway.http.pooling.reranking import reranking_routes
from gateway.http.settings import HttpSettings


def pooling_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of embeddings and of reranking."""
    return [*embedding_routes(settings), *reranking_routes(settings)]
