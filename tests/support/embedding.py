"""An embedder and a token counter whose results tests can foresee."""

from __future__ import annotations

import asyncio
import re
import string

import numpy as np

from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_grpc
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unavailable
from pagantic_common.rpc.access.gate import OPEN_TO_ALL
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.server import start_server
from services.context.settings import ContextSettings
from tests.support.doors import open_to_all

INFERENCE = "pagantic.inference.v1.InferenceService"


class FirstLetters:
    """Counts the first letters of words, or the last ones as model "last", scaled to unit length.

    Attributes:
        on_embed: Called with the texts of each call.
        reached, waits: Set at the first call; an event without which no call ends, None for none.
    """

    def __init__(self):
        self.failing = set()
        self.max_chars = 1_000_000
        self.on_embed = len
        self.reached, self.waits = asyncio.Event(), None

    async def embed(self, model, texts):
        self.on_embed(texts)
        self.reached.set()
        if self.waits is not None:
            await self.waits.wait()
        if model in self.failing:
            raise Unavailable("the model is away", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)
        if any(len(text) > self.max_chars for text in texts):
            raise InvalidRequest("a text is too long", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED)
        place = {"last": -1}.get(model, 0)
        vectors = np.full((len(texts), 26), 1e-6, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall("[a-z]+", text.lower()):
                vectors[row, string.ascii_lowercase.index(word[place])] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class WordCounter:
    """Counts words."""

    async def count(self, model, texts):
        return [len(text.split()) for text in texts]


class WordCountingInference(inference_grpc.InferenceServiceServicer):
    """Counts words, and embeds them by their first letters."""

    def __init__(self, *embedding_models):
        self._embedding_models = embedding_models
        self._embedder = FirstLetters()

    async def CountTokens(self, request, _context):
        if request.model not in ("", "small", *self._embedding_models):
            raise self._refusal_of(request.model)
        return inference_pb.CountTokensResponse(text_tokens=[len(text.split()) for text in request.texts])

    async def Embed(self, request, _context):
        if request.model not in self._embedding_models:
            raise self._refusal_of(request.model)
        vectors = await self._embedder.embed(request.model, request.texts)
        return inference_pb.EmbedResponse(embeddings=[inference_pb.Embedding(values=vector) for vector in vectors])

    def _refusal_of(self, model):
        known = ", ".join(self._embedding_models)
        return InvalidRequest(f"no engine serves {model!r}: use {known}", code=ErrorCode.CONFIG_NO_ENGINE)


def word_counting_registration(*embedding_models, guard=OPEN_TO_ALL):
    servicer = WordCountingInference(*embedding_models)
    return Registration(
        INFERENCE,
        lambda server: inference_grpc.add_InferenceServiceServicer_to_server(servicer, server),
        open_to_all(INFERENCE),
        guard,
    )


async def serve_inference(*embedding_models):
    server, _, port = await start_server(ContextSettings(port=0), [word_counting_registration(*embedding_models)])
    yield f"127.0.0.1:{port}"
    await server.stop(None)
