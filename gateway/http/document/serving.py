"""`/openapi.json` and `/docs`: the document, and its page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.http.document.assembly import document_of
from gateway.http.document.operations import JSON, Access, DescribedRoute, Operation, Tag
from gateway.http.document.page import POLICY, page_of
from gateway.http.settings import HttpSettings
from gateway.http.shapes.shape import AnswerShape
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient
from pagantic_common.settings import Auth


class OpenApiDocument(AnswerShape):
    """This document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


def document_routes(others: Sequence[DescribedRoute], settings: HttpSettings) -> list[DescribedRoute]:
    """Return the paths of the document, which has these paths and its own."""

    @cache
    def document() -> dict[str, Any]:
        return document_of([*others, *routes], version("pagantic"), needs_key=settings.auth is Auth.KEYS)

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

    routes = [
        DescribedRoute(
            "GET",
            "/openapi.json",
            show_document,
            Operation(
                Tag.DOCUMENT, "getDocument", "The document of this API.", answer=OpenApiDocument, access=Access.OPEN
            ),
        ),
        DescribedRoute(
            "GET",
            "/docs",
            show_page,
            Operation(Tag.DOCUMENT, "getPage", "The same, as a page.", text_type="text/html", access=Access.OPEN),
        ),
    ]
    return routes
