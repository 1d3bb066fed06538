"""Embed over a real socket with a scripted embedder, and once with a tiny encoder in llama.cpp."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.clock import FakeClock
from pagantic_common.testing.scripted_embedder import ScriptedEmbedder
from pagantic_common.testing.scripted_engine import ScriptedEngine
from pagantic_common.testing.server import serving
from services.inference.app.pooling import EmbedderLoop, Embedding
from services.inference.app.replica_watch import wait_until_broken
from services.inference.settings import InferenceSettings
from services.inference.wiring.service import open_app
from tests.support.pooled_app import Gate, embedding_over, load_with, models_over
from tests.support.tiny_bert import write_tiny_bert


def chat_engine():
    engine = ScriptedEngine()
    engine.model = replace(engine.model, name="chat")
    return engine


async def embed(stub, *texts, model="", timeout_s=10.0):
    return await call_unary("inference", stub.Embed, pb.EmbedRequest(model=model, texts=texts), timeout_s)


async def emptied(queue):
    for _ in range(500):
        if not queue:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(len(queue))


def vectors_of(reply):
    return np.array([list(embedding.values) for embedding in reply.embeddings])


async def test_vectors_have_the_length_1_and_the_order_of_the_texts(stub_of):
    embedder = ScriptedEmbedder()
    stub = await stub_of(models_over(embedding_over(embedder)))
    texts = ["red", "", "a longer text than the others", "red", "green", *(f"text {number}" for number in range(40))]
    reply = await embed(stub, *texts)
    vectors = vectors_of(reply)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        assert vector @ vectors_of(await embed(stub, text))[0] == pytest.approx(1, abs=1e-5)
    assert (vectors[0] == vectors[3]).all()
    assert vectors[0] @ vectors[4] < 0.999
    assert reply.usage.prompt_tokens == sum(len(text.encode()) + 2 for text in texts)
    assert reply.usage.context_tokens == len(texts[2]) + 2
    assert reply.usage.context_window == 64


async def test_texts_of_waiting_requests_share_a_batch(stub_of):
    gate = Gate()
    embedder = ScriptedEmbedder(on_embed=gate)
    stub = await stub_of(models_over(embedding_over(embedder)))
    first = asyncio.create_task(embed(stub, "first"))
    await asyncio.to_thread(gate.reached.wait, 5)
    others = [asyncio.create_task(embed(stub, text)) for text in ("a", "b", "c")]
    load = await load_with(stub, queued_requests=3)
    assert (load.running_sequences, load.sequence_capacity, load.queue_capacity) == (1, 8, 4)
    gate.opened.set()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in embedder.batches] == [1, 3]


@pytest.mark.parametrize(
    ("texts", "code", "word"),
    [
        ([], ErrorCode.CONFIG_INVALID, "0 texts"),
        (["x"] * 257, ErrorCode.CONFIG_INVALID, "257 texts"),
        (["x", "y" * 63], ErrorCode.INFERENCE_CONTEXT_EXCEEDED, r"texts\[1\] has 65 tokens.* 64"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_sizes(stub_of, texts, code, word):
    embedder = ScriptedEmbedder()
    stub = await stub_of(models_over(embedding_over(embedder)))
    with pytest.raises(InvalidRequest, match=word) as refused:
        await embed(stub, *texts)
    assert refused.value.code is code
    assert embedder.batches == []
    assert len((await embed(stub, *["x"] * 256)).embeddings) == 256


async def test_an_empty_text_is_refused_where_the_model_has_no_special_tokens(stub_of):
    stub = await stub_of(models_over(embedding_over(ScriptedEmbedder(has_special=False))))
    with pytest.raises(InvalidRequest, match=r"texts\[1\] has no tokens"):
        await embed(stub, "x", "")


async def test_an_empty_alias_is_the_first_embedding_model_and_a_chat_model_says_what_to_use(stub_of):
    models = models_over(embedding_over(ScriptedEmbedder()), engine=chat_engine())
    stub = await stub_of(models)
    assert len((await embed(stub, "x")).embeddings) == 1
    for model, word in (("chat", "'chat' makes no embeddings: use 'scripted'"), ("x", "no engine")):
        with pytest.raises(InvalidRequest, match=word) as refused:
            await embed(stub, "x", model=model)
        assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    assert [one.info.name for one in models.loaded] == ["scripted"]  # nothing was loaded to be refused


async def test_a_service_of_chat_models_says_that_it_has_no_other(stub_of):
    stub = await stub_of(models_over(engine=chat_engine()))
    with pytest.raises(InvalidRequest, match="this service has no model that makes embeddings"):
        await embed(stub, "x")


async def test_a_full_queue_is_refused_with_a_delay(stub_of):
    gate = Gate()
    stub = await stub_of(models_over(embedding_over(ScriptedEmbedder(on_embed=gate), queue_capacity=1)))
    running = [asyncio.create_task(embed(stub, "x"))]
    await asyncio.to_thread(gate.reached.wait, 5)
    running.append(asyncio.create_task(embed(stub, "y")))
    await load_with(stub, queued_requests=1)
    with pytest.raises(Overloaded) as refused:
        await embed(stub, "z")
    assert refused.value.code is ErrorCode.INFERENCE_OVERLOADED
    assert refused.value.retry_after_s
    gate.opened.set()
    assert all(len(reply.embeddings) == 1 for reply in await asyncio.gather(*running))


async def test_a_cancelled_caller_frees_the_embedder_after_its_batch(stub_of):
    gate = Gate()
    embedder = ScriptedEmbedder(on_embed=gate)
    loop = EmbedderLoop(embedder, queue_capacity=4, clock=SystemClock())
    stub = await stub_of(models_over(Embedding(loop)))
    running = asyncio.create_task(embed(stub, *["a text of thirty bytes or so"] * 50))
    await asyncio.to_thread(gate.reached.wait, 5)
    running.cancel()
    with pytest.raises((asyncio.CancelledError, Cancelled)):
        await running
    await emptied(loop.queue)  # the server knows that its caller has gone
    gate.opened.set()
    await embed(stub, "x")
    assert len(embedder.batches) == 2


async def test_a_deadline_is_looked_at_between_batches():
    embedder = ScriptedEmbedder()
    embedding = Embedding(EmbedderLoop(embedder, queue_capacity=4, clock=FakeClock(step_s=1.0)))
    with work_scope(deadline=Deadline(6.0)), pytest.raises(DeadlineExceeded):
        await embedding.embed(["a text of thirty bytes or so"] * 50)
    assert 1 <= len(embedder.batches) < 6
    assert len((await embedding.embed(["x"]))[0]) == 1
    await embedding.close()


async def test_a_failing_batch_fails_its_requests_and_the_next_is_served(stub_of):
    failures = [Internal("llama_encode gave -3", code=ErrorCode.INFERENCE_ENGINE_ERROR), MemoryError("no memory")]

    def fail_twice(_texts):
        if failures:
            raise failures.pop(0)

    stub = await stub_of(models_over(embedding_over(ScriptedEmbedder(on_embed=fail_twice))))
    for word in ("gave -3", "died of MemoryError"):
        with pytest.raises(Internal, match=word) as failed:
            await embed(stub, "x", "y")
        assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR
    assert len((await embed(stub, "x")).embeddings) == 1


async def test_closing_ends_what_waits_after_the_batch_at_hand():
    gate = Gate()
    embedder = ScriptedEmbedder(on_embed=gate)
    embedding = embedding_over(embedder)
    running = asyncio.create_task(embedding.embed(["a text of thirty bytes or so"] * 50))
    await asyncio.to_thread(gate.reached.wait, 5)
    closing = asyncio.create_task(embedding.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await closing
    with pytest.raises(Cancelled, match="the service stops"):
        await running
    assert len(embedder.batches) == 1
    with pytest.raises(Unavailable, match="the service stops"):
        await embedding.embed(["x"])


async def test_a_stuck_batch_ends_its_requests_and_is_told_to_health():
    gate = Gate()
    embedding = embedding_over(ScriptedEmbedder(on_embed=gate))
    models = models_over(embedding)
    async with models.use(""):
        waiting = asyncio.create_task(embedding.embed(["x"]))
        reason = await wait_until_broken(models, step_timeout_s=0.05, clock=SystemClock(), interval_s=0.01)
        assert "longer than 0.05 s" in reason
        with pytest.raises(Unavailable, match="longer than"):
            await waiting
        with pytest.raises(Unavailable, match="broken") as refused:
            await embedding.embed(["x"])
        assert refused.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
    gate.opened.set()
    await models.close()


async def test_the_service_embeds_with_a_real_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_tiny_bert(tmp_path / "tiny.gguf")
    settings = InferenceSettings(model_path=str(path))
    async with open_app(settings, path) as registrations, serving(registrations) as (channel, _):
        stub = rpc.InferenceServiceStub(channel)
        reply = await embed(stub, "red cars", "", "green")
        assert np.linalg.norm(vectors_of(reply), axis=1) == pytest.approx(1, abs=1e-5)
        assert reply.usage.prompt_tokens == 5 + 2 + 3  # with those before and after each text
        with pytest.raises(InvalidRequest, match="has 33 tokens") as refused:
            await embed(stub, "red " * 31)
        assert refused.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED
        with pytest.raises(InvalidRequest, match="tells no probabilities of given text"):
            await call_unary("inference", stub.Score, pb.ScoreRequest(text="x", continuations=["y"]))
        tokens = await call_unary("inference", stub.Tokenize, pb.TokenizeRequest(text="red", add_special=True))
        assert len(tokens.tokens) == 3
        engine = await call_unary("inference", stub.DescribeEngine, pb.DescribeEngineRequest())
        assert (engine.state, engine.note) == (pb.TUNING_STATE_DEFAULTS, "the model decodes no text")
        with pytest.raises(PreconditionFailed, match="the model decodes no text"):
            await call_unary("inference", stub.TuneEngine, pb.TuneEngineRequest())
    (kept,) = (tmp_path / "pagantic" / "tuning").iterdir()
    assert json.loads(kept.read_text()) == {"use_extra_bufts": True, "tuning": None}  # so this CPU is not tried again
