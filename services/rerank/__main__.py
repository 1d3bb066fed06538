"""Entry point of the rerank service: `python -m services.rerank`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from pagantic.rerank.v1 import rerank_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.rpc.inference.pools import InferencePools, open_pools
from pagantic_common.rpc.process.program import Program
from services.rerank.adapters.custom_scorers import load_scorers
from services.rerank.adapters.inference_models import InferenceModels
from services.rerank.app.probability import JudgeScorer, LikelihoodScorer, ProbabilityOptions
from services.rerank.app.reranking import Reranking
from services.rerank.app.scorers import CrossEncoderScorer, EmbeddingScorer, local_scorers
from services.rerank.servicer import SCOPES, RerankServicer
from services.rerank.settings import RerankSettings


@asynccontextmanager
async def open_app(settings: RerankSettings) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service and yield its registrations. Raises InvalidRequest if a custom or default scorer is invalid."""
    async with open_pools(settings) as pools:
        servicer = RerankServicer(make_reranking(settings, pools))
        add_to = partial(pb_grpc.add_RerankServiceServicer_to_server, servicer)
        yield [Registration("pagantic.rerank.v1.RerankService", add_to, SCOPES, guard_of("rerank", settings))]


def make_reranking(settings: RerankSettings, pools: InferencePools) -> Reranking:
    """Return the Rerank use case. Raises InvalidRequest if a custom or default scorer is invalid."""
    models = InferenceModels(pools)
    options = ProbabilityOptions(settings.model, settings.chunks_at_once)
    embedding = EmbeddingScorer(models, settings.embedding_model)
    built_in = [
        *local_scorers(),
        embedding,
        CrossEncoderScorer(models, settings.cross_encoder_model),
        LikelihoodScorer(models, options),
        JudgeScorer(models, options),
    ]
    reserved_names = [scorer.info.name for scorer in built_in]
    custom = load_scorers(settings.custom_scorers, reserved_names)
    return Reranking([*built_in, *custom], embedding, settings.default_scorers)


PROGRAM = Program("rerank", RerankSettings, open_app)

if __name__ == "__main__":
    PROGRAM.run()
