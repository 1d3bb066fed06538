"""InferenceService over the app: decode, call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any

import grpc

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.codec.messages import model_info_to_proto
from pagantic_common.domain.errors import Unsupported
from services.inference.app.generation import Generation
from services.inference.convert import chat_prompt_from_proto, event_to_proto, request_from_proto

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name


class InferenceServicer(rpc.InferenceServiceServicer):
    """See the service's proto for what each rpc promises."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        rpc.add_InferenceServiceServicer_to_server(self, server)

    async def Infer(self, request: pb.InferRequest, context: Context) -> AsyncIterator[pb.InferResponse]:
        self._generation.check_model(request.model)
        async with aclosing(self._generation.infer(request_from_proto(request))) as events:
            async for event in events:
                yield event_to_proto(event)

    async def CancelCandidates(
        self, request: pb.CancelCandidatesRequest, context: Context
    ) -> pb.CancelCandidatesResponse:
        self._generation.cancel_candidates(request.inference_id, request.candidate_indexes)
        return pb.CancelCandidatesResponse()

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        raise Unsupported("Embed is not built yet: this service holds a chat model")

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        raise Unsupported("Score is not built yet")

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        self._generation.check_model(request.model)
        engine = self._generation.engine
        options = {"add_special": request.add_special, "parse_special": request.parse_special}
        tokens = await asyncio.to_thread(engine.tokenize, request.text, **options)
        return pb.TokenizeResponse(tokens=tokens)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        self._generation.check_model(request.model)
        data = self._generation.engine.detokenize(request.tokens, with_special=request.with_special)
        return pb.DetokenizeResponse(text=data.decode("utf-8", "replace"))

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        self._generation.check_model(request.model)
        engine = self._generation.engine
        chat = chat_prompt_from_proto(request.chat) if request.HasField("chat") else None
        counts = await asyncio.to_thread(self._count_texts, request.texts)
        chat_tokens = len(await asyncio.to_thread(self._generation.prompt_tokens, chat)) if chat is not None else 0
        return pb.CountTokensResponse(
            text_tokens=counts, chat_tokens=chat_tokens, context_window=engine.model.context_window
        )

    def _count_texts(self, texts: Iterable[str]) -> list[int]:
        engine = self._generation.engine
        return [len(engine.tokenize(text, add_special=False, parse_special=False)) for text in texts]

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[model_info_to_proto(self._generation.engine.model)])

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        loop = self._generation.loop
        scheduler = loop.scheduler
        return pb.GetLoadResponse(
            queued_requests=scheduler.waiting,
            queue_capacity=scheduler.limits.queue_capacity,
            running_sequences=scheduler.running,
            sequence_capacity=scheduler.limits.max_running,
            kv_used_tokens=scheduler.tree.used_tokens,
            kv_capacity_tokens=scheduler.tree.capacity_tokens,
            output_tokens_total=scheduler.output_tokens_total,
        )
