"""The inference service over a real socket with a scripted engine."""

import asyncio
import threading
import time

import grpc
import numpy as np
import pytest

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
)
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.testing.scripted_engine import CERTAIN, ScriptedEngine
from pagantic_common.testing.server import serving
from services.inference.app.models import Models, ModelSpec
from tests.support.inference_app import computed, generation_over, registration_of, served


@pytest.fixture
async def inference():
    """Gives a function that serves an engine and returns a stub; engines are closed at the end."""
    stack, generations = [], []

    async def serve(engine, **options):
        generation = generation_over(engine, **options)
        generations.append(generation)
        models = Models([ModelSpec(engine.model, 0)], lambda _spec: served(generation))
        await models.use("").__aenter__()
        context = serving([registration_of(models)])
        channel, _address = await context.__aenter__()
        stack.append(context)
        return rpc.InferenceServiceStub(channel)

    yield serve
    for context in reversed(stack):
        await context.__aexit__(None, None, None)
    for generation in generations:
        await generation.close()


def chat(text="hi", **fields):
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    fields.setdefault("max_tokens", 50)
    return pb.InferRequest(chat=generation_pb2.ChatPrompt(messages=[message]), **fields)


async def collect(stub, request, timeout_s=10.0):
    return [event async for event in call_stream("inference", stub.Infer, request, timeout_s)]


def texts_of(events):
    texts = {}
    for event in events:
        if event.WhichOneof("event") == "delta":
            texts[event.delta.candidate_index] = texts.get(event.delta.candidate_index, "") + event.delta.content
    return texts


async def test_events_come_in_order_and_text_is_whole(inference):
    stub = await inference(ScriptedEngine("Grüße, 世界"))
    events = await collect(stub, chat())
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started"
    assert kinds[-2:] == ["candidate_end", "completed"]
    assert texts_of(events) == {0: "Grüße, 世界"}
    assert events[-2].candidate_end.finish_reason == generation_pb2.FINISH_REASON_STOP
    usage = events[-1].completed.usage
    assert usage.output_tokens == len("Grüße, 世界".encode())
    assert usage.context_tokens == usage.prompt_tokens + usage.output_tokens
    assert events[0].started.seed == 7


async def test_candidates_share_one_prompt_and_a_second_request_its_prefix(inference):
    engine = ScriptedEngine("ok")
    stub = await inference(engine)
    events = await collect(stub, chat("hello", candidate_count=3))
    assert texts_of(events) == {0: "ok", 1: "ok", 2: "ok"}
    prompt = events[0].started.prompt_tokens
    assert computed(engine) == prompt + len("ok")  # they agree, so they are one row each step
    assert events[-1].completed.computed_tokens == computed(engine)
    assert events[-1].completed.usage.output_tokens == 3 * len("ok")
    again = await collect(stub, chat("hello there"))
    assert again[0].started.cached_prompt_tokens == len("user: hello")


async def test_a_stop_string_ends_the_output_and_is_not_in_it(inference):
    stub = await inference(ScriptedEngine("one two three"))
    events = await collect(stub, chat(stop=["two"]))
    assert texts_of(events) == {0: "one "}
    assert events[-2].candidate_end.finish_reason == generation_pb2.FINISH_REASON_STOP


async def test_max_tokens_ends_the_output_with_length(inference):
    stub = await inference(ScriptedEngine("abcdef"))
    events = await collect(stub, chat(max_tokens=3))
    assert texts_of(events) == {0: "abc"}
    assert events[-2].candidate_end.finish_reason == generation_pb2.FINISH_REASON_LENGTH


async def test_a_prompt_that_does_not_fit_says_both_sizes(inference):
    stub = await inference(ScriptedEngine(context_window=64))
    with pytest.raises(InvalidRequest, match="context window 64") as caught:
        await collect(stub, chat("x" * 100))
    assert caught.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED
    assert caught.value.failure.details["context_window"] == 64


@pytest.mark.parametrize(
    ("change", "error", "wrong"),
    [
        ({"model": "other"}, InvalidRequest, "no engine serves model 'other'"),
        ({"sampling": generation_pb2.Sampling(temperature=3)}, InvalidRequest, "sampling.temperature"),
        ({"sampling": generation_pb2.Sampling(logit_bias={1: float("nan")})}, InvalidRequest, "logit_bias"),
        ({"max_tokens": -1}, InvalidRequest, "max_tokens is -1"),
        ({"candidate_count": 99}, InvalidRequest, "candidate_count is 99"),
        ({"stop": [""]}, InvalidRequest, "stop takes"),
        ({"options_json": "{"}, InvalidRequest, "options_json is not JSON"),
        ({"options_json": '{"mirostat":1}'}, InvalidRequest, "no option 'mirostat'"),
        ({"top_logprobs": 21}, InvalidRequest, "top_logprobs is 21"),
        ({"constraint": generation_pb2.DecoderConstraint(regex="a+")}, InvalidRequest, "has no masks"),
    ],
)
async def test_a_wrong_field_is_named_and_the_next_request_is_served(inference, change, error, wrong):
    stub = await inference(ScriptedEngine("fine"))
    with pytest.raises(error, match=wrong):
        await collect(stub, chat(**change))
    assert texts_of(await collect(stub, chat())) == {0: "fine"}


async def test_cancelling_stops_decoding_within_one_step_and_frees_the_engine(inference):
    reached, go_on = threading.Event(), threading.Event()

    def pause(_tokens):
        if len(engine.batches) == 5:
            reached.set()
            go_on.wait(60)

    engine = ScriptedEngine("x" * 300, on_decode=pause)
    stub = await inference(engine)
    call = stub.Infer(chat(max_tokens=300))
    await asyncio.to_thread(reached.wait, 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    await asyncio.sleep(0.3)  # the cancel crosses the socket while the engine is held
    go_on.set()
    await collect(stub, chat("next", max_tokens=1))
    assert len(engine.batches) <= 5 + 2 + 1


async def test_a_deadline_reaches_the_decode_loop(inference):
    hold = threading.Event()
    engine = ScriptedEngine("x" * 300, on_decode=lambda _tokens: hold.wait(0.05))
    stub = await inference(engine)
    with pytest.raises(DeadlineExceeded):
        await collect(stub, chat(max_tokens=300), timeout_s=0.3)
    hold.set()
    await collect(stub, chat("next", max_tokens=1))
    assert len(engine.batches) < 20


async def test_a_full_queue_is_refused_with_a_delay(inference):
    hold = threading.Event()
    stub = await inference(
        ScriptedEngine("x", on_decode=lambda _tokens: hold.wait(60)), queue_capacity=1, max_running=1
    )
    running = [asyncio.create_task(collect(stub, chat())) for _ in range(2)]
    try:
        for _ in range(100):
            load = await call_unary("inference", stub.GetLoad, pb.GetLoadRequest())
            if load.queued_requests == 1:
                break
            await asyncio.sleep(0.01)
        with pytest.raises(Overloaded) as caught:
            await collect(stub, chat())
        assert caught.value.retry_after_s
    finally:
        hold.set()
    assert all(texts_of(events) == {0: "x"} for events in await asyncio.gather(*running))


async def test_tokens_are_counted_as_the_model_sees_them(inference):
    stub = await inference(ScriptedEngine())
    request = pb.CountTokensRequest(texts=["abc", ""], chat=chat().chat)
    reply = await call_unary("inference", stub.CountTokens, request)
    assert list(reply.text_tokens) == [3, 0]
    assert reply.chat_tokens == len("user: hi\nassistant: ")
    tokens = await call_unary("inference", stub.Tokenize, pb.TokenizeRequest(text="añb"))
    text = await call_unary("inference", stub.Detokenize, pb.DetokenizeRequest(tokens=tokens.tokens))
    assert text.text == "añb"


async def test_continuations_are_scored_over_one_prompt(inference):
    engine = ScriptedEngine("hello")
    stub = await inference(engine)
    request = pb.ScoreRequest(text="say ", continuations=["hello", "help", ""])
    reply = await call_unary("inference", stub.Score, request)
    assert [len(score.tokens) for score in reply.scores] == [5, 4, 0]
    assert reply.scores[0].logprob == pytest.approx(0.0, abs=1e-3)
    assert reply.scores[1].logprob == pytest.approx(-CERTAIN, abs=1e-3)
    assert computed(engine) <= len("say ") + len("hell") + len("hel") + 1
    assert reply.usage.prompt_tokens == len("say ") + len("hell")  # "hel" begins both
    with pytest.raises(InvalidRequest, match="65 continuations"):
        await call_unary("inference", stub.Score, pb.ScoreRequest(text="x", continuations=["y"] * 65))
    with pytest.raises(InvalidRequest, match="prompt is not set"):
        await call_unary("inference", stub.Score, pb.ScoreRequest(continuations=["y"]))


def branches(count, *continuations):
    return [pb.ScoreBranch(ending=f"question {number}?", continuations=continuations) for number in range(count)]


async def test_branches_share_what_they_begin_with_and_read_labels_of_one_token_from_one_row(inference):
    engine = ScriptedEngine("Yes")
    stub = await inference(engine)
    request = pb.ScoreRequest(chat=chat("text. ").chat, branches=branches(30, "Y", "N"))
    reply = await call_unary("inference", stub.Score, request)
    common = len("user: text. question ")
    assert len(reply.branches) == 30
    for branch in reply.branches:
        yes, no = branch.scores
        assert (len(yes.tokens), len(no.tokens)) == (1, 1)
        assert yes.logprob == pytest.approx(0.0, abs=1e-3)
        assert no.logprob == pytest.approx(-CERTAIN, abs=1e-3)
    tails = sum(len(f"{number}?\nassistant: ") for number in range(30))
    assert (reply.usage.prompt_tokens, reply.model.name) == (common + tails, engine.model.name)
    assert computed(engine) <= common + tails  # endings that begin alike share that, too, while they are read
    assert max(map(len, engine.batches)) >= 4


async def test_labels_of_several_tokens_are_scored_whole(inference):
    engine = ScriptedEngine("017")
    stub = await inference(engine)
    labels = [f"{number:03}" for number in range(1, 31)]
    request = pb.ScoreRequest(text="pick ", branches=[pb.ScoreBranch(ending="one: ", continuations=labels)])
    [branch] = (await call_unary("inference", stub.Score, request)).branches
    best = max(range(30), key=lambda index: branch.scores[index].logprob)
    assert labels[best] == "017"
    assert branch.scores[best].logprob == pytest.approx(0.0, abs=1e-3)


async def test_the_cells_of_endings_are_given_back_and_the_prompt_is_kept(inference):
    engine = ScriptedEngine("Yes")
    stub = await inference(engine)
    for _ in range(2):
        request = pb.ScoreRequest(chat=chat("some longer text. ").chat, branches=branches(12, "Y"))
        reply = await call_unary("inference", stub.Score, request)
    common = len("user: some longer text. question ")
    assert reply.usage.cached_prompt_tokens == common
    assert (await call_unary("inference", stub.GetLoad, pb.GetLoadRequest())).kv_used_tokens <= common


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (pb.ScoreRequest(text="x", branches=branches(401, "Y")), "401 branches: there must be 1 to 400"),
        (pb.ScoreRequest(text="x", branches=branches(1)), "a branch has 0 continuations"),
        (pb.ScoreRequest(text="x", branches=branches(1, *"Y" * 257)), "a branch has 257 continuations"),
        (pb.ScoreRequest(text="x", branches=branches(33, *"Y" * 256)), "8448 continuations together, at most 8192"),
        (pb.ScoreRequest(text="x", continuations=["a"], branches=branches(1, "Y")), "both set"),
        (
            pb.ScoreRequest(
                chat=generation_pb2.ChatPrompt(
                    messages=[message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content="x")]
                ),
                branches=branches(1, "Y"),
            ),
            "let a user's message be the last",
        ),
    ],
)
async def test_branches_that_cannot_be_scored_are_refused_with_the_limit(inference, request_, words):
    stub = await inference(ScriptedEngine())
    with pytest.raises(InvalidRequest, match=words):
        await call_unary("inference", stub.Score, request_)


async def test_marks_of_our_own_in_a_text_are_plain_characters(inference):
    stub = await inference(ScriptedEngine("Yes"), template="{% for m in messages %}{{ m.content | trim }}{% endfor %}|")
    ending = "\ue002 \ue0000\ue001"
    request = pb.ScoreRequest(chat=chat("a \ue002").chat, branches=[pb.ScoreBranch(ending=ending, continuations=["Y"])])
    reply = await call_unary("inference", stub.Score, request)
    assert reply.usage.prompt_tokens == len(f"a \ue002{ending}|".encode())


async def test_a_failing_step_fails_the_score_with_its_own_error(inference):
    def fail(_slices):
        raise Internal("llama_decode gave -3", code=ErrorCode.INFERENCE_ENGINE_ERROR)

    stub = await inference(ScriptedEngine(on_decode=fail))
    with pytest.raises(Internal, match="gave -3") as failed:
        await call_unary("inference", stub.Score, pb.ScoreRequest(text="x", continuations=["a", "b"]))
    assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR


async def test_a_message_over_the_limit_is_refused_by_grpc_itself(inference):
    stub = await inference(ScriptedEngine())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Infer(chat("x" * (5 * 1024 * 1024))):
            pass
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_message_that_spells_a_control_token_is_counted_as_its_characters(inference):
    stub = await inference(ScriptedEngine())
    request = pb.CountTokensRequest(chat=chat("<end>hi").chat)
    reply = await call_unary("inference", stub.CountTokens, request)
    assert reply.chat_tokens == len("user: <end>hi\nassistant: ")


async def test_one_candidate_is_cancelled_over_the_wire(inference):
    def uneven(_tokens):
        row = np.zeros(257, dtype=np.float32)
        row[97:123] = 5.0
        return row

    slow = threading.Event()
    engine = ScriptedEngine(logits_of=uneven, on_decode=lambda _slices: slow.wait(0.005))
    stub = await inference(engine)
    call = stub.Infer(chat(candidate_count=3, max_tokens=150))
    ends = {}
    async for event in call:
        if event.WhichOneof("event") == "started":
            wanted = pb.CancelCandidatesRequest(inference_id=event.started.inference_id, candidate_indexes=[1])
            await call_unary("inference", stub.CancelCandidates, wanted)
            wrong = pb.CancelCandidatesRequest(inference_id=event.started.inference_id, candidate_indexes=[7])
            with pytest.raises(InvalidRequest, match="candidate 7"):
                await call_unary("inference", stub.CancelCandidates, wrong)
        if event.WhichOneof("event") == "candidate_end":
            ends[event.candidate_end.candidate_index] = event.candidate_end
    assert ends[1].finish_reason == generation_pb2.FINISH_REASON_CANCELLED
    assert ends[1].output_tokens < 150
    assert [ends[index].output_tokens for index in (0, 2)] == [150, 150]
    with pytest.raises(NotFound, match="ended"):
        await call_unary("inference", stub.CancelCandidates, wanted)


async def test_log_probabilities_come_with_their_alternatives(inference):
    stub = await inference(ScriptedEngine("ab"))
    events = await collect(stub, chat(top_logprobs=2))
    logprobs = [logprob for event in events for logprob in event.delta.logprobs]
    assert [(logprob.piece, len(logprob.top)) for logprob in logprobs] == [(b"a", 2), (b"b", 2)]
    assert all(abs(logprob.logprob) < 0.01 and logprob.top[0].piece == logprob.piece for logprob in logprobs)


async def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused(inference):
    stub = await inference(ScriptedEngine())
    with pytest.raises(InvalidRequest, match="token 257: the model has 257 tokens"):
        await collect(stub, chat(sampling=generation_pb2.Sampling(logit_bias={257: 1.0})))
    await collect(stub, chat(sampling=generation_pb2.Sampling(logit_bias={256: 1.0})))


async def test_text_that_cannot_fit_is_refused_by_every_rpc_in_milliseconds(inference):
    """The bound is 0.5 s for each of 4 MB; 1.3 million tokens took hundreds of megabytes."""
    stub = await inference(ScriptedEngine(context_window=512))
    text = "a1 " * 1_300_000
    requests = [
        (stub.Tokenize, pb.TokenizeRequest(text=text)),
        (stub.CountTokens, pb.CountTokensRequest(texts=["", text])),
        (stub.Score, pb.ScoreRequest(text=text, continuations=["x"])),
        (stub.Score, pb.ScoreRequest(text="x", continuations=[text])),
        (stub.Detokenize, pb.DetokenizeRequest(tokens=[1] * 513)),
    ]
    for method, request in requests:
        started_s = time.perf_counter()
        with pytest.raises(InvalidRequest) as refused:
            await call_unary("inference", method, request)
        assert refused.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED
        assert time.perf_counter() - started_s < 0.5
    with pytest.raises(InvalidRequest, match="the prompt has"):
        await collect(stub, chat(text))
