"""Serves models that pool texts: the vectors of embedding models, and the relevance scores of cross-encoders.

`/v1/embeddings` has the form of OpenAI's API, and `/rerank` the form that Jina's and Cohere's APIs share.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, read_object
from gateway.http.openai.forms import MAX_INPUTS, Form, IgnoredFields, naming_ignored, read_form, texts_of
from gateway.http.openai.models import DefaultName
from gateway.http.operations import OPENAI, Dialect, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.web.forms import Items
from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.counting import LIMITS

RERANK = Dialect("Cohere and Jina")
MAX_DOCUMENTS = LIMITS["pagantic.orchestrator.v1.RerankRequest.texts"]
MAX_RESULTS = (1 << 31) - 1


class EmbeddingForm(Form):
    """A request to `/v1/embeddings`. Token ids as input, which OpenAI's documentation allows, are rejected."""

    model: str = ""
    input: str | Annotated[list[Any], Items(MAX_INPUTS, minimum=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class DocumentForm(Form):
    """A document. Only its text is ranked."""

    text: str


class RerankForm(Form):
    """A request to `/rerank`."""

    model: str = ""
    query: str
    documents: Annotated[list[str | DocumentForm], Items(MAX_DOCUMENTS, minimum=1)]
    top_n: Annotated[int, Field(ge=1, le=MAX_RESULTS)] | None = None
    return_documents: bool | None = None

    def unused_paths(self) -> Iterator[str]:
        """Yield the unused paths. All fields of a document that is returned count as used."""
        paths = super().unused_paths()
        return (path for path in paths if not (self.return_documents and path.startswith("documents[]")))


class PromptUsage(AnswerShape):
    """The tokens of a request without output."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(AnswerShape):
    """A vector, as numbers or as their bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(AnswerShape):
    """The vectors of the texts, in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: PromptUsage
    pagantic: NotRequired[IgnoredFields]


class RankedDocument(AnswerShape):
    """A document, identified by its position in the request, with its relevance."""

    index: int
    relevance_score: float
    document: NotRequired[dict[str, Any]]


class Ranking(AnswerShape):
    """The documents, the most relevant first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: PromptUsage
    pagantic: NotRequired[IgnoredFields]


def pooling_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of embeddings, and of reranking: Jina's, and both versions of Cohere's API."""
    embedding_model, ranking_model = DefaultName(settings, "embed"), DefaultName(settings, "score_pairs")

    async def embed(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Make vectors of texts."""
        form = await apart(body, read_form, read_object(body), EmbeddingForm)
        response = await client.embed(texts_of("input", form.input), model=settings.alias_of(form.model))
        name = await embedding_model.or_sent(form.model, client, request)
        return JSONResponse(naming_ignored(embeddings_of(form, name, response), form))

    async def rerank(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Rank documents by their relevance to a query."""
        form = await apart(body, read_form, read_object(body), RerankForm)
        texts = [document if isinstance(document, str) else document.text for document in form.documents]
        model = settings.alias_of(form.model)
        response = await client.rerank(form.query, texts, model=model, top_n=form.top_n or 0)
        name = await ranking_model.or_sent(form.model, client, request)
        return JSONResponse(naming_ignored(ranking_of(form, name, response, request.scope["request_id"]), form))

    return [
        Operation(OPENAI, "POST /v1/embeddings", embed, "createEmbeddings", EmbeddingForm, EmbeddingList),
        Operation(RERANK, "POST /rerank", rerank, "rerank", RerankForm, Ranking),
        Operation(RERANK, "POST /v1/rerank", rerank, "rerankV1", RerankForm, Ranking),
        Operation(RERANK, "POST /v2/rerank", rerank, "rerankV2", RerankForm, Ranking),
    ]


def embeddings_of(form: EmbeddingForm, name: str, response: inference_service_pb2.EmbedResponse) -> EmbeddingList:
    """Return the object of `/v1/embeddings` with the given model name.

    Raises InvalidRequest if the model has fewer dimensions than requested.
    """
    vectors = [shortened(embedding.values, form.dimensions) for embedding in response.embeddings]
    tokens = response.usage.prompt_tokens
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, form.encoding_format)}
            for index, vector in enumerate(vectors)
        ],
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def shortened(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """Return the first dimensions of a vector, rescaled to unit length, or the whole vector if `dimensions` is None.

    Raises InvalidRequest if the vector has fewer dimensions. A prefix whose length is zero is not rescaled.
    """
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise InvalidRequest(
            f"dimensions is {dimensions}: the vectors of this model have {len(vector)}, so send that or fewer"
        )
    beginning = vector[:dimensions]
    length = math.hypot(*beginning) or 1.0
    return [value / length for value in beginning]


def _encoded(vector: Sequence[float], encoding_format: str | None) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    return list(vector)


def ranking_of(form: RerankForm, name: str, response: pb.RerankResponse, request_id: str) -> Ranking:
    """Return the object of `/rerank` for a response, with the given model name."""
    tokens = response.usage.prompt_tokens
    return {
        "id": request_id,
        "object": "list",
        "model": name,
        "results": [_result(form, text) for text in response.results],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _result(form: RerankForm, text: pb.RerankedText) -> RankedDocument:
    result: RankedDocument = {"index": text.index, "relevance_score": text.relevance_score}
    if form.return_documents:
        document = form.documents[text.index]
        result["document"] = {"text": document} if isinstance(document, str) else document.model_dump(mode="json")
    return result
