"""vLLM's protocol over a real port, called through the stubs of its own package."""

import asyncio
import json
import os
import threading
from contextlib import asynccontextmanager

import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as rpc

from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as own_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as own_rpc
from pagantic_common.domain.errors import (
    Conflict,
    DeadlineExceeded,
    ErrorCode,
    InvalidRequest,
    Overloaded,
    Unsupported,
)
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.scripted_engine import END_TOKEN, ScriptedEngine, random_logits
from pagantic_common.testing.server import serving
from services.inference.app.models import Models, ModelSpec
from services.inference.vllm.servicer import SCOPES, SERVICE_NAME, VllmEngineServicer
from tests.support.inference_app import generation_over, served


@asynccontextmanager
async def engine_served(engine, *, tokenizer_bundle=b"", **options):
    generation = generation_over(engine, **options)
    models = Models([ModelSpec(engine.model, 0)], lambda _spec: served(generation))
    servicer = VllmEngineServicer(models, clock=SystemClock(), tokenizer_bundle=tokenizer_bundle)
    async with serving([Registration(SERVICE_NAME, servicer.add_to, SCOPES)]) as (channel, _address):
        yield rpc.VllmEngineStub(channel)
    await models.close()


@asynccontextmanager
async def model_served(monkeypatch, tmp_path, **settings):
    """Serve the bundled model as the service's own program does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(os.environ, "GOMP_SPINCOUNT", "0")
    from services.inference.__main__ import open_app  # noqa: PLC0415 - llama.cpp takes long to load
    from services.inference.settings import InferenceSettings  # noqa: PLC0415

    settings = {"vllm_protocol": True, "context_tokens": 512, **settings}
    chosen = InferenceSettings(port=0, tuning=False, self_check=False, threads=1, **settings)
    async with open_app(chosen) as registrations, serving(registrations) as (channel, _address):
        yield rpc.VllmEngineStub(channel), own_rpc.InferenceServiceStub(channel)


def request_of(text="hi", *, request_id="a", stream=True, **sampling):
    sampling = {"max_tokens": 50, "temperature": 0, **sampling}
    return pb.GenerateRequest(
        request_id=request_id, text=text, stream=stream, sampling_params=pb.SamplingParams(**sampling)
    )


def tokens_request(tokens, **fields):
    request = request_of(**fields)
    request.tokenized.input_ids.extend(tokens)
    return request


async def generate(stub, request, timeout_s=10.0):
    """Return the chunks and the last messages of one request."""
    responses = [one async for one in call_stream("inference", stub.Generate, request, timeout_s)]
    chunks = [one.chunk for one in responses if one.HasField("chunk")]
    return chunks, [one.complete for one in responses if one.HasField("complete")]


async def load_of(stub):
    response = await call_unary("inference", stub.GetLoads, pb.GetLoadsRequest(), 5.0)
    (load,) = response.loads
    return load


async def until(stub, is_so):
    """Wait until the engine's load is as it should be."""
    async with asyncio.timeout(60):
        while not is_so(await load_of(stub)):  # noqa: ASYNC110 - as a gateway looks
            await asyncio.sleep(0.01)


def is_idle(load):
    return load.num_total_reqs == 0


def slowly(steps):
    """Return what makes a step take its time, and adds it to the steps."""

    def decode(slices):
        steps.append(slices)
        threading.Event().wait(0.02)

    return decode


async def test_an_answer_is_streamed_as_tokens_or_given_at_once():
    async with engine_served(ScriptedEngine("Grüße")) as stub:
        chunks, (last,) = await generate(stub, request_of("hi"))
        assert b"".join(bytes(chunk.token_ids) for chunk in chunks).decode() == "Grüße"
        assert bytes(last.output_ids).decode() == "Grüße"
        assert (last.finish_reason, last.completion_tokens, last.prompt_tokens) == ("stop", 7, 2)
        chunks, (last,) = await generate(stub, tokens_request(b"hi", stream=False))
        assert chunks == []
        assert bytes(last.output_ids).decode() == "Grüße"
        assert last.prompt_tokens == 2
        assert last.cached_tokens > 0


async def test_stop_tokens_and_stop_strings_end_an_answer_and_are_named():
    async with engine_served(ScriptedEngine("one. two")) as stub:
        _chunks, (last,) = await generate(stub, request_of(stop_token_ids=[ord(".")]))
        assert (bytes(last.output_ids), last.matched_token_id) == (b"one", ord("."))
        _chunks, (last,) = await generate(stub, request_of(stop=["e. ", "zz"]))
        assert (bytes(last.output_ids), last.matched_stop_str) == (b"one. ", "e. ")
        _chunks, (last,) = await generate(stub, request_of())
        assert last.WhichOneof("matched_stop") is None


async def test_each_of_several_candidates_has_its_own_tokens():
    async with engine_served(ScriptedEngine(logits_of=random_logits)) as stub:
        asked = request_of(n=3, seed=5, temperature=1.0, max_tokens=20, logprobs=1)
        chunks, completes = await generate(stub, asked)
        for last in completes:
            own = [chunk for chunk in chunks if chunk.index == last.index]
            assert [token for chunk in own for token in chunk.token_ids] == list(last.output_ids)
            assert [token for chunk in own for token in chunk.output_logprobs.token_ids] == list(last.output_ids)
            assert last.completion_tokens == len(last.output_ids)
        assert sorted(last.index for last in completes) == [0, 1, 2]
        assert len({tuple(last.output_ids) for last in completes}) == 3
        _chunks, again = await generate(stub, asked)
        assert {last.index: list(last.output_ids) for last in completes} == {
            last.index: list(last.output_ids) for last in again
        }


async def test_each_candidate_ends_at_a_stop_token_of_its_own():
    stops = range(20)
    async with engine_served(ScriptedEngine(logits_of=random_logits)) as stub:
        _chunks, completes = await generate(stub, request_of(n=4, seed=1, temperature=2, stop_token_ids=stops))
        ended = [last for last in completes if last.HasField("matched_token_id")]
        assert len({last.matched_token_id for last in ended}) > 1
        for last in completes:
            assert not set(last.output_ids) & set(stops)
            assert not last.HasField("matched_token_id") or last.matched_token_id in stops


async def test_an_abort_stops_decoding_and_ends_the_stream():
    async with engine_served(ScriptedEngine("x" * 400, on_decode=slowly([]))) as stub:
        call = stub.Generate(request_of(max_tokens=400, request_id="long"))
        seen = aiter(call)
        tokens = list((await anext(seen)).chunk.token_ids)
        await call_unary("inference", stub.Abort, pb.AbortRequest(request_ids=["other", "long"]), 5.0)
        *chunks, last = [response async for response in seen]
        tokens += [token for response in chunks for token in response.chunk.token_ids]
        assert last.complete.finish_reason == "abort"
        assert list(last.complete.output_ids) == tokens
        assert 0 < len(tokens) < 400
        await until(stub, is_idle)


async def test_an_abort_ends_a_request_that_waits():
    free = threading.Event()
    async with engine_served(ScriptedEngine("word", on_decode=lambda _slices: free.wait(20))) as stub:
        call = stub.Generate(request_of(request_id="held", n=2))
        await until(stub, lambda load: load.num_total_reqs)
        await call_unary("inference", stub.Abort, pb.AbortRequest(request_ids=["held"]), 5.0)
        lasts = [response.complete async for response in call]
        assert [(last.index, last.finish_reason, last.completion_tokens) for last in lasts] == [
            (0, "abort", 0),
            (1, "abort", 0),
        ]
        free.set()


async def test_a_caller_that_leaves_stops_decoding():
    steps = []
    async with engine_served(ScriptedEngine("x" * 400, on_decode=slowly(steps))) as stub:
        call = stub.Generate(request_of(max_tokens=400))
        await call.read()
        call.cancel()
        await until(stub, is_idle)
        done = len(steps)
        assert done < 400
        info = await call_unary("inference", stub.GetServerInfo, pb.GetServerInfoRequest(), 5.0)
        assert info.active_requests == 0
        await asyncio.sleep(0.1)
        assert len(steps) == done


async def test_the_queue_and_running_ids_bound_requests():
    free = threading.Event()
    engine = ScriptedEngine("word", on_decode=lambda _slices: free.wait(20))
    async with engine_served(engine, queue_capacity=1, max_running=1) as stub:
        held = [stub.Generate(request_of(request_id="b"))]
        await until(stub, lambda load: load.num_running_reqs == 1)
        held.append(stub.Generate(request_of(request_id="c")))
        await until(stub, lambda load: load.num_waiting_reqs == 1)
        with pytest.raises(Conflict, match="'b' runs already"):
            await generate(stub, request_of(request_id="b"))
        with pytest.raises(Overloaded) as raised:
            await generate(stub, request_of(request_id="d"))
        assert raised.value.code is ErrorCode.INFERENCE_OVERLOADED
        free.set()
        for call in held:
            assert [response async for response in call][-1].complete.finish_reason == "stop"


async def test_a_deadline_ends_a_request():
    free = threading.Event()
    async with engine_served(ScriptedEngine("word", on_decode=lambda _slices: free.wait(20))) as stub:
        with pytest.raises(DeadlineExceeded):
            await generate(stub, request_of(), timeout_s=0.3)
        free.set()
        await until(stub, is_idle)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (tokens_request([1, END_TOKEN + 1]), "token 1 of the prompt is 257: the model has the tokens 0 to 256"),
        (tokens_request([2**32 - 1]), "token 0 of the prompt is 4294967295"),
        (tokens_request([1] * 513), "the prompt has 513 tokens, the context window holds 512"),
        (tokens_request([]), "the prompt is empty"),
        (request_of(stop_token_ids=[257]), "the stop token 257 is not known"),
        (request_of(logit_bias={257: 1.0}), "names token 257"),
        (request_of(temperature=3), "temperature is 3"),
        (request_of(n=65), "candidate_count is 65"),
        (request_of(n=2**32 - 1), "candidate_count is 4294967295"),
        (request_of(max_tokens=600), "max_tokens 600"),
        (request_of(ignore_eos=True), "sampling_params.ignore_eos is set"),
        (request_of(regex="a"), "the scripted engine has no masks"),
        (request_of(request_id=""), "request_id has 0 bytes"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_with_the_reason(request_, words):
    async with engine_served(ScriptedEngine("word")) as stub:
        with pytest.raises(InvalidRequest) as raised:
            await generate(stub, request_)
        assert words in str(raised.value)


async def test_what_is_not_served_says_so():
    async with engine_served(ScriptedEngine("word")) as stub:
        for method, request in (
            (stub.Embed, pb.EmbedRequest()),
            (stub.FlushCache, common_pb2.FlushCacheRequest()),
            (stub.StartProfile, common_pb2.StartProfileRequest()),
            (stub.StopProfile, common_pb2.StopProfileRequest()),
        ):
            with pytest.raises(Unsupported):
                await call_unary("inference", method, request, 5.0)


async def test_a_tokenizer_is_given_where_there_is_one():
    async def tokenizer_of(stub):
        request = common_pb2.GetTokenizerRequest()
        return [chunk async for chunk in call_stream("inference", stub.GetTokenizer, request, 5.0)]

    async with engine_served(ScriptedEngine("word"), tokenizer_bundle=b"zip" * 30_000) as stub:
        chunks = await tokenizer_of(stub)
        assert b"".join(chunk.data for chunk in chunks) == b"zip" * 30_000
        assert len(chunks) == 2
    async with engine_served(ScriptedEngine("word")) as stub:
        with pytest.raises(Unsupported, match="set PAGANTIC_INFERENCE_VLLM_TOKENIZER_FOLDER"):
            await tokenizer_of(stub)


def test_every_method_of_the_protocol_has_a_scope():
    assert set(SCOPES) == {method.name for method in pb.DESCRIPTOR.services_by_name["VllmEngine"].methods}


async def test_the_bundled_model_answers_as_through_its_own_contract(monkeypatch, tmp_path):
    async with model_served(monkeypatch, tmp_path) as (stub, own):
        info = await call_unary("inference", stub.GetModelInfo, pb.GetModelInfoRequest(), 10.0)
        assert (info.vocab_size, info.max_context_length, list(info.eos_token_ids)) == (49152, 512, [0, 2, 4])
        text = "The capital of France is"
        expected = ""
        sampling = generation_pb2.Sampling(temperature=0)
        async for event in own.Infer(own_pb.InferRequest(text=text, sampling=sampling, max_tokens=12)):
            expected += event.delta.content
        tokens = (await own.Tokenize(own_pb.TokenizeRequest(text=text))).tokens
        for asked in (request_of(text, max_tokens=12), tokens_request(tokens, max_tokens=12)):
            _chunks, (last,) = await generate(stub, asked, 60.0)
            shown = await own.Detokenize(own_pb.DetokenizeRequest(tokens=last.output_ids))
            assert shown.text == expected
            assert (last.finish_reason, last.completion_tokens) == ("length", 12)
        with pytest.raises(InvalidRequest, match="token 0 of the prompt is 49152: the model has the tokens 0 to 49151"):
            await generate(stub, tokens_request([49152]))


async def test_the_bundled_model_keeps_to_each_kind_of_structured_output(monkeypatch, tmp_path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "maxProperties": 1}
    kinds = {
        "json_schema": (json.dumps(schema), lambda text: isinstance(json.loads(text)["n"], int)),
        "regex": ("[ab]{3}", lambda text: set(text) <= set("ab") and len(text) == 3),
        "grammar": ('root ::= "left" | "right"', lambda text: text in {"left", "right"}),
        "choice": (pb.ChoiceConstraint(choices=["red", "blue"]), lambda text: text in {"red", "blue"}),
    }
    async with model_served(monkeypatch, tmp_path) as (stub, own):
        for field, (value, is_right) in kinds.items():
            _chunks, (last,) = await generate(stub, request_of("Answer: ", **{field: value}), 60.0)
            shown = await own.Detokenize(own_pb.DetokenizeRequest(tokens=last.output_ids))
            assert last.finish_reason == "stop", field
            assert is_right(shown.text), (field, shown.text)


@pytest.mark.parametrize("is_asked_for", [False, True])
async def test_the_protocol_is_served_where_it_is_asked_for(monkeypatch, tmp_path, is_asked_for):
    async with model_served(monkeypatch, tmp_path, vllm_protocol=is_asked_for) as (stub, own):
        check = call_unary("inference", stub.HealthCheck, pb.HealthCheckRequest(), 10.0)
        if is_asked_for:
            assert (await check).healthy
        else:
            with pytest.raises(Unsupported):
                await check
        assert (await own.ListModels(own_pb.ListModelsRequest())).models


async def test_a_tokenizer_that_is_not_there_keeps_the_service_from_starting(monkeypatch, tmp_path):
    with pytest.raises(InvalidRequest, match=r"VLLM_TOKENIZER_FOLDER is .* which has no tokenizer\.json"):
        async with model_served(monkeypatch, tmp_path, vllm_tokenizer_folder=str(tmp_path)):
            pass
