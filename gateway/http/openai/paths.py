"""The paths of OpenAI's API."""

from __future__ import annotations

from starlette.routing import Route

from gateway.http.openai.chat import chat_routes
from gateway.http.openai.decisions import decision_routes
from gateway.http.openai.models import model_routes
from gateway.http.openai.responses.compaction import compaction_routes
from gateway.http.openai.responses.conversations import conversation_routes
from gateway.http.openai.responses.counting import counting_routes
from gateway.http.openai.responses.creating import creation_routes
from gateway.http.openai.responses.stored import stored_routes
from gateway.http.openai.stored_chats import stored_chat_routes
from gateway.http.settings import HttpSettings


def openai_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of chats, responses, conversations, decisions and models."""
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
    ]
