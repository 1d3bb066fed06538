"""`/openapi.json` and `/docs`: the document, and its page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gateway.http.document.assembly import document_of
from gateway.http.document.operations import JSON, DescribedRoute
from gateway.http.document.page import POLICY, page_of
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient
from pagantic_common.settings import Auth


def document_routes(describe_all: Callable[[], Sequence[DescribedRoute]], settings: HttpSettings) -> list[Route]:
    """Return the paths of the document; `describe_all` gives the routes that it has, these among them."""

    @cache
    def document() -> dict[str, Any]:
        return document_of(describe_all(), version("pagantic"), needs_key=settings.auth is Auth.KEYS)

    @cache
    def text() -> str:
        return json.dumps(document(), ensure_ascii=False)

    @cache
    def page() -> str:
        return page_of(document())

    async def show_document(_client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        return Response(text(), media_type=JSON)

    async def show_page(_client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        return HTMLResponse(page(), headers={"content-security-policy": POLICY, "x-content-type-options": "nosniff"})

    return [Route("/openapi.json", show_document, methods=["GET"]), Route("/docs", show_page, methods=["GET"])]
