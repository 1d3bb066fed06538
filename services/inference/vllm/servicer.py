"""Implements VllmEngine over the app, with the same engine, limits and callers as InferenceService.

The answers consist of tokens.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as rpc

from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Unsupported
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.block_events import BlockEvents
from services.inference.app.generation import Generation
from services.inference.app.models import Models
from services.inference.app.replica_watch import ReplicaWatch
from services.inference.core.generation import InferenceRequest
from services.inference.core.request_check import check_request
from services.inference.vllm.events import KvEvents
from services.inference.vllm.request import request_from_proto
from services.inference.vllm.response import ResponseEncoder, load_to_proto
from services.inference.vllm.running import RunningRequest, RunningRequests
from services.inference.vllm.tokenizer_bundle import bundle_tokenizer, chunks_of

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VllmEngine"].full_name

# The scope that each method requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "Generate": Scope.EXECUTE,
        "Abort": Scope.EXECUTE,
        "Embed": Scope.EXECUTE,
        "HealthCheck": Scope.READ,
        "GetModelInfo": Scope.READ,
        "GetServerInfo": Scope.READ,
        "GetLoads": Scope.READ,
        "GetTokenizer": Scope.READ,
        "SubscribeKvEvents": Scope.READ,
        "FlushCache": Scope.ADMIN,
        "StartProfile": Scope.ADMIN,
        "StopProfile": Scope.ADMIN,
    }
)


class VllmEngineServicer:
    """Implements the RPCs of vLLM's engine for the default model. The package smg-grpc-proto documents each RPC.

    Args:
        models: The models of this service.
        clock: The clock for the age of the service.
        tokenizer_bundle: The files of the default model's tokenizer, as `bundle_tokenizer` packs them. It is empty if
            there are no files.
        events: The events of the cache, for callers that choose among replicas. If None, requests for events are
            rejected.
    """

    def __init__(
        self,
        models: Models,
        *,
        clock: Clock,
        tokenizer_bundle: bytes = b"",
        events: KvEvents | None = None,
    ) -> None:
        self._models = models
        self._events = events
        self._clock = clock
        self._tokenizer_bundle = tokenizer_bundle
        self._started_s = clock.monotonic_s()
        self._running = RunningRequests()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        rpc.add_VllmEngineServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        decoded = request_from_proto(request)
        check_request(decoded)
        with self._running.running(request.request_id) as running:
            async with (
                self._generation() as generation,
                aclosing(_responses(generation, decoded, running, streams=request.stream)) as responses,
            ):
                async for response in responses:
                    yield response

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        self._running.abort(request.request_ids)
        return pb.AbortResponse()

    async def HealthCheck(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        broken = [reason for served in self._models.loaded if (reason := served.workload.broken_because)]
        if broken:
            return pb.HealthCheckResponse(healthy=False, message=f"the engine is broken: {broken[0]}")
        return pb.HealthCheckResponse(healthy=True, message="the engine works")

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        async with self._generation() as generation:
            model, vocabulary = generation.engine.model, generation.engine.vocabulary
            return pb.GetModelInfoResponse(
                model_path=model.name,
                served_model_name=model.name,
                is_generation=True,
                max_context_length=model.context_window,
                max_req_input_len=model.context_window,
                vocab_size=vocabulary.size,
                eos_token_ids=sorted(vocabulary.end_tokens),
            )

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        return pb.GetServerInfoResponse(
            active_requests=len(self._running),
            uptime_seconds=self._clock.monotonic_s() - self._started_s,
            server_type="pagantic",
            data_parallel_size=1,
            max_num_seqs=self._models.load().sequence_capacity,
            constrained_decoding_start="first_token",
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        return pb.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=version("pagantic"),
            dp_rank_count=1,
            loads=[load_to_proto(self._models.load())],
        )

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        if self._events is None:
            raise Unsupported(
                "this service does not tell what its cache has: set PAGANTIC_INFERENCE_VLLM_KV_EVENTS, or call "
                "GetLoads and route by the prefixes that were sent"
            )
        async with self._models.use("") as served:
            served.generates()  # raises if the default model is remote, because its cache is unknown here
        async with aclosing(self._events.batches(request.start_sequence_number)) as batches:
            async for batch in batches:
                yield batch

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        if not self._tokenizer_bundle:
            raise Unsupported(
                "this service has no tokenizer to give away: set PAGANTIC_INFERENCE_VLLM_TOKENIZER_FOLDER, or give "
                "the gateway a tokenizer for the model"
            )
        for chunk in chunks_of(self._tokenizer_bundle):
            yield chunk

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        raise Unsupported("embeddings of tokens are not served: call pagantic.inference.v1 InferenceService/Embed")

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        raise Unsupported("the cache cannot be flushed: PAGANTIC_INFERENCE_MAX_IDLE_TOKENS and PARKED_MIB bound it")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        raise Unsupported("this service has no profiler: its traces and metrics show where time goes")

    async def StopProfile(self, request: common_pb2.StopProfileRequest, context: Context) -> common_pb2.ProfileResponse:
        raise Unsupported("this service has no profiler: its traces and metrics show where time goes")

    @asynccontextmanager
    async def _generation(self) -> AsyncIterator[Generation]:
        """Use the default model inside the block. Raises InvalidRequest (CONFIG_NO_ENGINE) if it is remote."""
        async with self._models.use("") as served:
            yield served.generates()


async def _responses(
    generation: Generation, request: InferenceRequest, running: RunningRequest, *, streams: bool
) -> AsyncGenerator[pb.GenerateResponse, None]:
    """Yield the responses to one request, including the last responses after an abort."""
    generation.check_candidate_count(request.candidate_count)
    encoder = ResponseEncoder(candidate_count=request.candidate_count, streams=streams)
    async with aclosing(generation.infer(request)) as events:
        while (event := await running.next_of(events)) is not None:
            for response in encoder.encode(event):
                yield response
    if running.is_aborted:
        for response in encoder.encode_abort():
            yield response


def make_registration(
    models: Models, watch: ReplicaWatch, guard: Guard, *, tokenizer_folder: str, has_events: bool
) -> Registration:
    """Return the registration, which serves the tokenizer in `tokenizer_folder`.

    With `has_events`, it also serves cache events. Raises InvalidRequest if the tokenizer cannot be served.
    """
    clock = SystemClock()
    bundle = b""
    if tokenizer_folder:
        bundle = bundle_tokenizer(Path(tokenizer_folder))
    events = None
    if has_events:
        events = KvEvents(BlockEvents(models, watch, clock))
    servicer = VllmEngineServicer(models, clock=clock, tokenizer_bundle=bundle, events=events)
    return Registration(SERVICE_NAME, servicer.add_to, SCOPES, guard)
