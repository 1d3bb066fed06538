"""Makes the use-case with the scorers of the settings."""

from __future__ import annotations

from pagantic_common.rpc.inference.pools import InferencePools
from services.rerank.adapters.custom_scorers import load_scorers
from services.rerank.adapters.inference_models import InferenceModels
from services.rerank.app.cross_encoder import CrossEncoderScorer
from services.rerank.app.embedding import EmbeddingScorer
from services.rerank.app.local_scorers import local_scorers
from services.rerank.app.probability import JudgeScorer, LikelihoodScorer, ProbabilityOptions
from services.rerank.app.reranking import Reranking
from services.rerank.settings import RerankSettings


def make_reranking(settings: RerankSettings, pools: InferencePools) -> Reranking:
    """Make the use-case; raises InvalidRequest for a wrong custom or default scorer."""
    models = InferenceModels(pools, settings.inference_timeout_s)
    options = ProbabilityOptions(settings.model, settings.chunk_chars, settings.chunks_at_once)
    embedding = EmbeddingScorer(models, settings.embedding_model)
    built_in = [
        *local_scorers(),
        embedding,
        CrossEncoderScorer(models, settings.cross_encoder_model),
        LikelihoodScorer(models, options),
        JudgeScorer(models, options),
    ]
    taken = [scorer.info.name for scorer in built_in]
    custom = load_scorers(settings.custom_scorers, settings.custom_scorer_timeout_s, taken)
    return Reranking([*built_in, *custom], embedding, settings.default_scorers)
