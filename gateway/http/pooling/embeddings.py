"""`/v1/embeddings`: vectors of texts, in the form of OpenAI's API."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.openai.forms import Form, read_form, texts_of
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic.inference.v1 import inference_service_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest

MAX_INPUTS = 2048


class EmbeddingForm(Form):
    """A request of `/v1/embeddings`. OpenAI's document allows token ids as input; they are refused here."""

    model: str = ""
    input: str | Annotated[list[Any], Field(min_length=1, max_length=MAX_INPUTS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


def embedding_routes(settings: HttpSettings) -> list[Route]:
    """Return the path of vectors."""

    async def create(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        form = read_form(read_object(body), EmbeddingForm)
        response = await client.embed(texts_of("input", form.input), model=settings.alias_of(form.model))
        return JSONResponse(embeddings_of(form, response))

    return [Route("/v1/embeddings", create, methods=["POST"])]


def embeddings_of(form: EmbeddingForm, response: inference_service_pb2.EmbedResponse) -> dict[str, Any]:
    """Return the object of `/v1/embeddings`; raises InvalidRequest for more dimensions than the model has."""
    vectors = [shortened(embedding.values, form.dimensions) for embedding in response.embeddings]
    tokens = response.usage.prompt_tokens
    told: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, form.encoding_format)}
            for index, vector in enumerate(vectors)
        ],
        "model": form.model or "default",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    if form.ignored:
        told["pagantic"] = {"ignored": form.ignored}
    return told


def shortened(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """Return the first dimensions of a vector, of unit length again; None means all of them.

    Raises InvalidRequest for more dimensions than the vector has. A beginning without length stays unchanged.
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
