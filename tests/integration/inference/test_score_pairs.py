"""ScorePairs over a real socket with a scripted cross-encoder, and once with a real one in llama.cpp."""

import asyncio

import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
)
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.clock import FakeClock
from pagantic_common.testing.scripted_embedder import ScriptedEmbedder
from pagantic_common.testing.server import serving
from services.inference.adapters.conversion import EPSILON, HEADS
from services.inference.app.pooling import EmbedderLoop, PairScoring
from services.inference.settings import InferenceSettings
from services.inference.wiring.service import open_app
from tests.support.bert_forward import BertClassifier
from tests.support.cross_encoder import write_cross_encoder
from tests.support.pooled_app import Gate, embedding_over, load_with, models_over, pair_scoring_over
from tests.support.scripted_cross_encoder import ScriptedCrossEncoder

QUERY_TOKENS, SPECIAL_TOKENS = 3, 3


async def score_pairs(stub, *texts, query="red", model="", timeout_s=10.0):
    request = pb.ScorePairsRequest(model=model, query=query, texts=texts)
    return await call_unary("inference", stub.ScorePairs, request, timeout_s)


async def test_scores_have_the_order_of_the_texts(stub_of):
    stub = await stub_of(models_over(pair_scoring_over(ScriptedCrossEncoder())))
    texts = ["blue", "red", "", "reed", *["green"] * 40]
    reply = await score_pairs(stub, *texts)
    assert list(reply.scores) == [-2.0, 3.0, 0.0, 3.0, *[0.0] * 40]
    sizes = [len(text) + QUERY_TOKENS + SPECIAL_TOKENS for text in texts]
    assert reply.usage.prompt_tokens == sum(sizes)
    assert (reply.usage.context_tokens, reply.usage.context_window) == (max(sizes), 64)


async def test_pairs_of_waiting_requests_share_a_batch(stub_of):
    gate = Gate()
    cross_encoder = ScriptedCrossEncoder(on_embed=gate)
    stub = await stub_of(models_over(pair_scoring_over(cross_encoder)))
    first = asyncio.create_task(score_pairs(stub, "first"))
    await asyncio.to_thread(gate.reached.wait, 5)
    others = [asyncio.create_task(score_pairs(stub, text)) for text in ("a", "b", "c")]
    await load_with(stub, queued_requests=3)
    gate.opened.set()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in cross_encoder.batches] == [1, 3]


async def test_a_long_text_is_cut_at_its_end(stub_of):
    cross_encoder = ScriptedCrossEncoder()
    stub = await stub_of(models_over(pair_scoring_over(cross_encoder)))
    reply = await score_pairs(stub, "red" * 18 + "e" * 4 + "xyz" * 100_000)
    assert list(reply.scores) == [3.0]
    assert reply.usage.prompt_tokens == 64


@pytest.mark.parametrize(
    ("query", "texts", "code", "word"),
    [
        ("red", [], ErrorCode.CONFIG_INVALID, "0 texts"),
        ("red", ["x"] * 257, ErrorCode.CONFIG_INVALID, "257 texts"),
        (" ", ["x"], ErrorCode.CONFIG_INVALID, "query is empty"),
        ("y" * 33, ["x"], ErrorCode.INFERENCE_CONTEXT_EXCEEDED, "query has 33 tokens, at most 32 .* 64"),
        ("y" * 3000, ["x"], ErrorCode.INFERENCE_CONTEXT_EXCEEDED, "query has 3000 bytes"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_sizes(stub_of, query, texts, code, word):
    cross_encoder = ScriptedCrossEncoder()
    stub = await stub_of(models_over(pair_scoring_over(cross_encoder)))
    with pytest.raises(InvalidRequest, match=word) as refused:
        await score_pairs(stub, *texts, query=query)
    assert refused.value.code is code
    assert cross_encoder.batches == []
    assert len((await score_pairs(stub, *["x"] * 256)).scores) == 256


async def test_each_kind_of_model_does_its_own_work(stub_of):
    stub = await stub_of(models_over(embedding_over(ScriptedEmbedder()), pair_scoring_over(ScriptedCrossEncoder())))
    assert list((await score_pairs(stub, "red")).scores) == [3.0]
    embed = pb.EmbedRequest(texts=["x"])
    assert len((await call_unary("inference", stub.Embed, embed)).embeddings) == 1
    wrong = [
        (score_pairs(stub, "red", model="scripted"), "'scripted' is no cross-encoder: use 'pairs'"),
        (call_unary("inference", stub.Embed, pb.EmbedRequest(model="pairs", texts=["x"])), "makes no embeddings"),
        (
            call_unary("inference", stub.Score, pb.ScoreRequest(model="pairs", text="x")),
            "'pairs' tells no probabilities of given text",
        ),
        (score_pairs(stub, "red", model="x"), "no engine serves model 'x'"),
    ]
    for call, word in wrong:
        with pytest.raises(InvalidRequest, match=word) as refused:
            await call
        assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_a_service_without_a_cross_encoder_says_what_to_add(stub_of):
    stub = await stub_of(models_over(embedding_over(ScriptedEmbedder())))
    with pytest.raises(InvalidRequest, match=r"no cross-encoder: add .* PAGANTIC_INFERENCE_MODELS") as refused:
        await score_pairs(stub, "red")
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_a_full_queue_is_refused_with_a_delay(stub_of):
    gate = Gate()
    work = pair_scoring_over(ScriptedCrossEncoder(on_embed=gate), queue_capacity=1)
    stub = await stub_of(models_over(work))
    running = [asyncio.create_task(score_pairs(stub, "x"))]
    await asyncio.to_thread(gate.reached.wait, 5)
    running.append(asyncio.create_task(score_pairs(stub, "y")))
    await load_with(stub, queued_requests=1)
    with pytest.raises(Overloaded) as refused:
        await score_pairs(stub, "z")
    assert (refused.value.code, refused.value.retry_after_s) == (ErrorCode.INFERENCE_OVERLOADED, 1.0)
    gate.opened.set()
    await asyncio.gather(*running)


async def test_a_cancelled_request_leaves_the_queue(stub_of):
    gate = Gate()
    cross_encoder = ScriptedCrossEncoder(on_embed=gate)
    stub = await stub_of(models_over(pair_scoring_over(cross_encoder)))
    running = asyncio.create_task(score_pairs(stub, "x"))
    await asyncio.to_thread(gate.reached.wait, 5)
    gone = asyncio.create_task(score_pairs(stub, "y"))
    await load_with(stub, queued_requests=1)
    gone.cancel()
    await load_with(stub, queued_requests=0)
    gate.opened.set()
    await running
    assert len(cross_encoder.batches) == 1


async def test_a_deadline_is_looked_at_between_batches():
    cross_encoder = ScriptedCrossEncoder()
    loop = EmbedderLoop(cross_encoder, queue_capacity=4, clock=FakeClock(step_s=1.0))
    work = PairScoring(loop, cross_encoder.pair_layout)
    with work_scope(deadline=Deadline(6.0)), pytest.raises(DeadlineExceeded):
        await work.score_pairs("red", ["a text of twenty byte"] * 50)
    assert 1 <= len(cross_encoder.batches) < 6
    await work.close()


async def test_a_failing_batch_is_the_engines_failure(stub_of):
    def fail(_texts):
        raise Internal("llama_encode gave -3", code=ErrorCode.INFERENCE_ENGINE_ERROR)

    stub = await stub_of(models_over(pair_scoring_over(ScriptedCrossEncoder(on_embed=fail))))
    with pytest.raises(Internal, match="gave -3") as failed:
        await score_pairs(stub, "x")
    assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR


@pytest.mark.whole
async def test_the_service_scores_with_a_real_cross_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "cross-encoder.gguf"
    definition = BertClassifier(write_cross_encoder(path), heads=HEADS, epsilon=EPSILON)
    settings = InferenceSettings(model_path=str(path))
    async with open_app(settings, path) as registrations, serving(registrations) as (channel, _):
        stub = rpc.InferenceServiceStub(channel)
        (first, *_) = (await call_unary("inference", stub.ListModels, pb.ListModelsRequest())).models
        assert list(first.capabilities) == ["score_pairs"]
        reply = await score_pairs(stub, "cats", "sleep " * 1000, query="cats", timeout_s=60.0)
        cats, sleep = 8870, 3637
        short, long = [101, cats, 102, cats, 102], [101, cats, 102, *[sleep] * 508, 102]
        assert list(reply.scores) == pytest.approx([definition.score(short), definition.score(long)], abs=0.02)
        assert reply.usage.prompt_tokens == len(short) + len(long)
        assert (reply.usage.context_tokens, reply.usage.context_window) == (512, 512)
        with pytest.raises(InvalidRequest, match="query has 300 tokens, at most 256"):
            await score_pairs(stub, "x", query="cats " * 300)
        with pytest.raises(PreconditionFailed, match="the model decodes no text"):
            await call_unary("inference", stub.TuneEngine, pb.TuneEngineRequest())
