"""Reranking by the real models, from the rerank service and through the orchestrator."""

import math

import grpc
import pytest

from pagantic.common.v1 import chunk_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import execution_pb2, orchestrator_service_pb2_grpc
from pagantic.rerank.v1 import ranking_pb2, rerank_service_pb2, rerank_service_pb2_grpc
from tests.support.live_requests import request

TEXTS = {
    "harbour": "The harbour closes at nine in the evening.",
    "bread": "Knead the dough, let it rest for an hour and bake it.",
    "cats": "Cats sleep for most of the day.",
}
QUESTION = "When does the port shut at night?"


@pytest.fixture
def rerank(system):
    with grpc.insecure_channel(system.address("rerank")) as channel:
        yield rerank_service_pb2_grpc.RerankServiceStub(channel)


@pytest.fixture
def stub(channel):
    return orchestrator_service_pb2_grpc.OrchestratorServiceStub(channel)


@pytest.mark.parametrize("scorer", ["embedding", "likelihood"])
def test_a_model_finds_the_chunk_that_shares_no_word_with_the_question(rerank, scorer):
    chunks = [chunk_pb2.Chunk(id=name, content=text, source=name) for name, text in reversed(TEXTS.items())]
    work = rerank_service_pb2.RerankRequest(query=QUESTION, chunks=chunks, scorer=scorer)
    reply = rerank.Rerank(work, timeout=60)
    assert reply.chunks[0].id == "harbour"
    again = rerank.Rerank(work, timeout=60)
    assert [chunk.id for chunk in again.chunks] == [chunk.id for chunk in reply.chunks]


def test_the_judge_gives_probabilities(rerank):
    chunks = [chunk_pb2.Chunk(id=name, content=text, source=name) for name, text in TEXTS.items()]
    reply = rerank.Rerank(rerank_service_pb2.RerankRequest(query=QUESTION, chunks=chunks, scorer="judge"), timeout=60)
    scores = [chunk.score for chunk in reply.chunks]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)


def test_a_cross_encoder_orders_by_the_scores_of_the_pairs(system, rerank):
    with grpc.insecure_channel(system.address("inference")) as channel:
        inference = inference_service_pb2_grpc.InferenceServiceStub(channel)
        request = inference_service_pb2.ScorePairsRequest(query=QUESTION, texts=TEXTS.values())
        scored = inference.ScorePairs(request, timeout=60)
    chunks = [chunk_pb2.Chunk(id=name, content=text, source=name) for name, text in TEXTS.items()]
    work = rerank_service_pb2.RerankRequest(query=QUESTION, chunks=chunks, scorer="cross_encoder")
    reply = rerank.Rerank(work, timeout=60)
    expected = {name: 1 / (1 + math.exp(-score)) for name, score in zip(TEXTS, scored.scores, strict=True)}
    assert [chunk.id for chunk in reply.chunks] == sorted(expected, key=expected.get, reverse=True)
    assert {chunk.id: chunk.score for chunk in reply.chunks} == pytest.approx(expected, abs=1e-3)


def test_without_a_scorer_the_embedding_decides_among_chunks_without_scores(rerank):
    chunks = [chunk_pb2.Chunk(id=name, content=text, source=name) for name, text in reversed(TEXTS.items())]
    reply = rerank.Rerank(rerank_service_pb2.RerankRequest(query=QUESTION, chunks=chunks), timeout=60)
    assert (reply.chunks[0].id, reply.chunks[0].score_kind) == ("harbour", "weighted")


def test_a_request_fuses_the_scores_of_retrieval_and_model(system, stub):
    with grpc.insecure_channel(system.address("context")) as channel:
        context = context_service_pb2_grpc.ContextServiceStub(channel)
        documents = [collection_pb2.Document(source=name, content=text) for name, text in TEXTS.items()]
        context.Ingest(context_service_pb2.IngestRequest(collection="reranked", documents=documents))
    scorers = [ranking_pb2.WeightedScorer(scorer="retriever"), ranking_pb2.WeightedScorer(scorer="embedding")]
    policy = policy_pb2.ContextPolicy(
        collection="reranked", rerank=policy_pb2.RerankPolicy(scorers=scorers, top_k=1), required=True
    )
    work = request("When does the harbour close for the day?", execution_pb2.MODE_CHAT, context=policy)
    response = stub.Execute(work, timeout=60)
    assert not response.HasField("error"), response.error
    assert not response.warnings
    unknown = policy_pb2.ContextPolicy(
        collection="reranked", rerank=policy_pb2.RerankPolicy(scorers=[ranking_pb2.WeightedScorer(scorer="magic")])
    )
    refused = stub.Execute(request("When does it close?", execution_pb2.MODE_CHAT, context=unknown), timeout=60)
    assert "'magic' is not known" in refused.error.message
