"""The paths of the gateway."""

from __future__ import annotations

from starlette.routing import Route

from gateway.http.native import native_routes
from gateway.http.openai.chat import chat_routes
from gateway.http.openai.decisions import decision_routes
from gateway.http.openai.models import model_routes
from gateway.http.openai.responses.compaction import compaction_routes
from gateway.http.openai.responses.conversations import conversation_routes
from gateway.http.openai.responses.counting import counting_routes
from gateway.http.openai.responses.creating import creation_routes
from gateway.http.openai.responses.stored import stored_routes
from gateway.http.openai.stored_chats import stored_chat_routes
from gateway.http.pooling.embeddings import embedding_routes
from gateway.http.pooling.reranking import reranking_routes
from gateway.http.settings import HttpSettings


def routes_of(settings: HttpSettings) -> list[Route]:
    """Return all paths."""
    return [
        *chat_routes(settings),
        *stored_chat_routes(),
        *creation_routes(settings),
        *compaction_routes(settings),
        *counting_routes(settings),
        *stored_routes(),
        *conversation_routes(),
        *decision_routes(settings),
        *model_routes(settings),
        *embedding_routes(settings),
        *reranking_routes(settings),
        *native_routes(settings),
    ]
