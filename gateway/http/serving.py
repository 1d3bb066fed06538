"""Collects every operation that the gateway serves, and adds `/openapi.json` and `/docs`, which describe them."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.http.anthropic.paths import anthropic_operations
from gateway.http.bodies import AnswerShape
from gateway.http.document.assembly import document_of
from gateway.http.document.page import POLICY, page_of
from gateway.http.native.approvals import approval_operations
from gateway.http.native.collections import collection_operations
from gateway.http.native.console.files import console_operations
from gateway.http.native.deployment import deployment_operations
from gateway.http.native.executions import execution_operations
from gateway.http.native.probes import PROBES
from gateway.http.native.sessions import session_operations
from gateway.http.ollama.paths import ollama_operations
from gateway.http.openai.chats.creating import chat_operations
from gateway.http.openai.chats.stored import stored_chat_operations
from gateway.http.openai.completions.creating import completion_operations
from gateway.http.openai.judging.decisions import decision_operations
from gateway.http.openai.judging.moderations import moderation_operations
from gateway.http.openai.responses.conversations import conversation_operations
from gateway.http.openai.responses.creating import creation_operations
from gateway.http.openai.responses.stored import stored_operations
from gateway.http.operations import DOCUMENT, JSON, Access, Operation
from gateway.http.pooling import pooling_operations
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient
from pagantic_common.settings import Auth


class OpenApiDocument(AnswerShape):
    """The OpenAPI document itself."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


def served_operations(settings: HttpSettings) -> list[Operation]:
    """Return every operation, including the console's operations, which the document omits."""
    return [*described_operations(settings), *console_operations(settings)]


def described_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations that the document describes."""

    @cache
    def document() -> dict[str, Any]:
        return document_of(operations, version("pagantic"), needs_key=settings.auth is Auth.KEYS)

    @cache
    def text() -> str:
        return json.dumps(document(), ensure_ascii=False)

    @cache
    def page() -> str:
        return page_of(document())

    async def show_document(_client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        """Get the document of this API."""
        return Response(text(), media_type=JSON)

    async def show_page(_client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        """Get the document as a page."""
        return HTMLResponse(page(), headers={"content-security-policy": POLICY})

    operations = [
        *chat_operations(settings),
        *stored_chat_operations(),
        *completion_operations(settings),
        *creation_operations(settings),
        *stored_operations(),
        *conversation_operations(),
        *decision_operations(settings),
        *moderation_operations(settings),
        *anthropic_operations(settings),
        *ollama_operations(settings),
        *pooling_operations(settings),
        *execution_operations(settings),
        *approval_operations(),
        *session_operations(),
        *collection_operations(),
        *deployment_operations(),
        *PROBES,
        Operation(
            DOCUMENT, "GET /openapi.json", show_document, "getDocument", answer=OpenApiDocument, access=Access.OPEN
        ),
        Operation(DOCUMENT, "GET /docs", show_page, "getPage", text_type="text/html", access=Access.OPEN),
    ]
    return operations
