"""Implements InferenceService over the app: decodes and checks requests, calls the app, and encodes responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.codec.messages import model_info_to_proto, usage_to_proto
from pagantic_common.domain.calls.principal import Scope
from services.inference.app.models import Models
from services.inference.app.replica_watch import ReplicaWatch
from services.inference.app.scoring import score_branches, score_continuations
from services.inference.app.tuning import Tuner
from services.inference.convert import (
    branches_from_proto,
    branches_response_to_proto,
    counted_chat_from_proto,
    embed_response_to_proto,
    event_to_proto,
    interval_from_proto,
    load_to_proto,
    models_to_proto,
    prompt_from_proto,
    report_to_proto,
    request_from_proto,
    score_response_to_proto,
    tuner_to_proto,
)
from services.inference.core.request_check import check_branches, check_prompt, check_request, check_scored

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name

# The scope that each RPC requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "Infer": Scope.EXECUTE,
        "CancelCandidates": Scope.EXECUTE,
        "Embed": Scope.EXECUTE,
        "ScorePairs": Scope.EXECUTE,
        "Score": Scope.EXECUTE,
        "Tokenize": Scope.EXECUTE,
        "Detokenize": Scope.EXECUTE,
        "CountTokens": Scope.EXECUTE,
        "ListModels": Scope.READ,
        "LoadModel": Scope.ADMIN,
        "UnloadModel": Scope.ADMIN,
        "GetLoad": Scope.READ,
        "WatchReplica": Scope.READ,
        "DescribeEngine": Scope.READ,
        "TuneEngine": Scope.ADMIN,
    }
)


class InferenceServicer(rpc.InferenceServiceServicer):
    """Implements the RPCs of the service. The service's proto documents each RPC."""

    def __init__(self, models: Models, tuner: Tuner, watch: ReplicaWatch) -> None:
        self._models = models
        self._tuner = tuner
        self._watch = watch

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        rpc.add_InferenceServiceServicer_to_server(self, server)

    async def Infer(self, request: pb.InferRequest, context: Context) -> AsyncIterator[pb.InferResponse]:
        decoded = request_from_proto(request)
        check_request(decoded)
        async with self._models.use(request.model) as served:
            served.check_images(decoded.prompt)
            served.check_options(decoded)
            async with aclosing(served.infers().infer(decoded)) as events:
                async for event in events:
                    yield event_to_proto(event)

    async def CancelCandidates(
        self, request: pb.CancelCandidatesRequest, context: Context
    ) -> pb.CancelCandidatesResponse:
        self._models.cancel_candidates(request.inference_id, request.candidate_indexes)
        return pb.CancelCandidatesResponse()

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        async with self._models.use(self._models.embedding_alias(request.model)) as served:
            vectors, usage = await served.embeds().embed(request.texts)
        return embed_response_to_proto(vectors, usage)

    async def ScorePairs(self, request: pb.ScorePairsRequest, context: Context) -> pb.ScorePairsResponse:
        async with self._models.use(self._models.cross_encoder_alias(request.model)) as served:
            scores, usage = await served.scores_pairs().score_pairs(request.query, request.texts)
        return pb.ScorePairsResponse(scores=scores, usage=usage_to_proto(usage))

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        prompt = prompt_from_proto(request)
        check_scored(prompt)
        branches = branches_from_proto(request)
        check_branches(prompt, branches, request.continuations)
        async with self._models.use(request.model) as served:
            if branches:
                all_scores, usage = await score_branches(served.weighs(), prompt, branches)
                return branches_response_to_proto(all_scores, usage, served.info)
            scores, usage = await score_continuations(served.weighs(), prompt, request.continuations)
            return score_response_to_proto(scores, usage, served.info)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        async with self._models.use(request.model) as served:
            tokens = await served.workload.preparation.tokenize(
                request.text, add_special=request.add_special, parse_special=request.parse_special
            )
        return pb.TokenizeResponse(tokens=tokens)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        async with self._models.use(request.model) as served:
            data = await served.workload.preparation.detokenize(request.tokens, with_special=request.with_special)
        return pb.DetokenizeResponse(text=data.decode("utf-8", "replace"))

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        chat = counted_chat_from_proto(request)
        if chat is not None:
            check_prompt(chat)
        async with self._models.use(request.model) as served:
            counts, chat_tokens = await served.count_tokens(request.texts, chat)
        return pb.CountTokensResponse(
            text_tokens=counts,
            chat_tokens=chat_tokens,
            context_window=served.info.context_window,
            is_estimate=served.workload.preparation.is_estimate,
        )

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return models_to_proto(self._models.infos, self._models.states)

    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> pb.LoadModelResponse:
        async with self._models.use(request.model) as served:
            return pb.LoadModelResponse(model=model_info_to_proto(served.info))

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Context) -> pb.UnloadModelResponse:
        return pb.UnloadModelResponse(was_loaded=await self._models.unload(request.model))

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        return load_to_proto(self._models.load())

    async def WatchReplica(
        self, request: pb.WatchReplicaRequest, context: Context
    ) -> AsyncIterator[pb.WatchReplicaResponse]:
        async with aclosing(self._watch.reports(interval_from_proto(request))) as reports:
            async for report in reports:
                yield report_to_proto(report)

    async def DescribeEngine(self, request: pb.DescribeEngineRequest, context: Context) -> pb.DescribeEngineResponse:
        loaded = [served.info.name for served in self._models.loaded]
        return tuner_to_proto(self._tuner, loaded)

    async def TuneEngine(self, request: pb.TuneEngineRequest, context: Context) -> pb.TuneEngineResponse:
        self._tuner.measure_again()
        return pb.TuneEngineResponse()
