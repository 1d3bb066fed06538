"""Embeddings in Ollama's API: `/api/embed`, and `/api/embeddings` for older clients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, NotRequired

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, read_object
from gateway.http.ollama.answers import OLLAMA
from gateway.http.ollama.models import name_in_use
from gateway.http.openai.forms import MAX_INPUTS, Form, IgnoredFields, naming_ignored, read_form
from gateway.http.openai.models import DefaultName, find_model
from gateway.http.operations import Operation
from gateway.http.pooling import shortened
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.web.forms import Items
from pagantic.inference.v1 import inference_service_pb2
from pagantic_common.client import AsyncClient


class EmbedForm(Form):
    """A request to `/api/embed`. A text that is too long for the model is an error, so `truncate` has no effect."""

    model: str
    input: str | Annotated[list[str], Items(MAX_INPUTS)] = ""
    dimensions: Annotated[int, Field(ge=1)] | None = None


class OldEmbedForm(Form):
    """A request to `/api/embeddings`."""

    model: str
    prompt: str = ""


class OllamaEmbeddings(AnswerShape):
    """The vectors of the texts, in the order of the texts. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    pagantic: NotRequired[IgnoredFields]


class OllamaEmbedding(AnswerShape):
    """The vector of a text, or an empty list for an empty text."""

    embedding: list[float]
    pagantic: NotRequired[IgnoredFields]


def embedding_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of embeddings."""
    default_name = DefaultName(settings, "embed")

    async def make(client: AsyncClient, model: str, texts: Sequence[str]) -> inference_service_pb2.EmbedResponse:
        """Return the vectors of texts. Raises NotFound for an unknown model, even without texts."""
        name = await name_in_use(client, settings, model)
        if texts:
            return await client.embed(texts, model=settings.alias_of(name))
        if name:
            await find_model(client, settings, name)
        return inference_service_pb2.EmbedResponse()

    async def embed(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Make vectors of texts."""
        began_ns = time.monotonic_ns()
        form = await apart(body, read_form, read_object(body), EmbedForm)
        texts = form.input
        if isinstance(texts, str):
            texts = [texts] if texts else []
        response = await make(client, form.model, texts)
        vectors = [list(shortened(embedding.values, form.dimensions)) for embedding in response.embeddings]
        answer: OllamaEmbeddings = {
            "model": await default_name.or_sent(form.model, client, request),
            "embeddings": vectors,
            "total_duration": time.monotonic_ns() - began_ns,
            "load_duration": 0,
            "prompt_eval_count": response.usage.prompt_tokens,
        }
        return JSONResponse(naming_ignored(answer, form))

    async def embed_one(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        """Make the vector of a text."""
        form = await apart(body, read_form, read_object(body), OldEmbedForm)
        response = await make(client, form.model, [form.prompt] if form.prompt else [])
        vectors = [list(embedding.values) for embedding in response.embeddings]
        answer: OllamaEmbedding = {"embedding": vectors[0] if vectors else []}
        return JSONResponse(naming_ignored(answer, form))

    return [
        Operation(OLLAMA, "POST /api/embed", embed, "ollamaEmbed", EmbedForm, OllamaEmbeddings),
        Operation(OLLAMA, "POST /api/embeddings", embed_one, "ollamaEmbeddings", OldEmbedForm, OllamaEmbedding),
    ]
