"""`/rerank`: documents in the order of their relevance, in the form that Jina's and Cohere's APIs share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.openai.forms import Form, read_form
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient

PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
MAX_RESULTS = (1 << 31) - 1


class DocumentForm(Form):
    """A document; only its text counts."""

    text: str

    @property
    def told(self) -> dict[str, Any]:
        """The document as the client sent it, with its other fields."""
        return self.model_dump(mode="json")


class RerankForm(Form):
    """A request of `/rerank`."""

    model: str = ""
    query: str
    documents: Annotated[list[str | DocumentForm], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1, le=MAX_RESULTS)] | None = None
    return_documents: bool | None = None


def reranking_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of reranking: Jina's, and both versions of Cohere's API."""

    async def rerank(client: AsyncClient, request: Request, body: bytes) -> Answer:
        form = read_form(read_object(body), RerankForm)
        texts = [document if isinstance(document, str) else document.text for document in form.documents]
        model = settings.alias_of(form.model)
        response = await client.rerank(form.query, texts, model=model, top_n=form.top_n or 0)
        return JSONResponse(ranking_of(form, response, request.scope["request_id"]))

    return [Route(path, rerank, methods=["POST"]) for path in PATHS]


def ranking_of(form: RerankForm, response: pb.RerankResponse, request_id: str) -> dict[str, Any]:
    """Return the object of `/rerank`."""
    tokens = response.usage.prompt_tokens
    told: dict[str, Any] = {
        "id": request_id,
        "object": "list",
        "model": form.model or "default",
        "results": [_result(form, text) for text in response.results],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    if form.ignored:
        told["pagantic"] = {"ignored": form.ignored}
    return told


def _result(form: RerankForm, text: pb.RerankedText) -> dict[str, Any]:
    result: dict[str, Any] = {"index": text.index, "relevance_score": text.relevance_score}
    if not form.return_documents:
        return result
    document = form.documents[text.index]
    if isinstance(document, str):
        return result | {"document": {"text": document}}
    return result | {"document": document.told}
