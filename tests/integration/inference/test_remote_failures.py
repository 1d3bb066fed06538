"""Every way in which a remote engine fails has its code, and leaves nothing behind."""

import asyncio
import gzip

import pytest
from starlette.responses import Response, StreamingResponse

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.remote.transport import MAX_EVENT_BYTES
from services.inference.app.replica_watch import wait_until_broken
from tests.support.engine_server import (
    DONE,
    Hold,
    call_piece,
    choice,
    ended,
    engine_server,
    event,
    refusal,
    spoken,
)
from tests.support.ports import free_ports
from tests.support.remote_app import models_of, remote


@pytest.fixture
async def engine():
    async with engine_server() as served:
        yield served


async def ask(stub, timeout_s=10.0, **fields):
    request = pb.InferRequest(text="hi", **fields)
    return [event async for event in call_stream("inference", stub.Infer, request, timeout_s)]


def text_of(events):
    return "".join(event.delta.content for event in events)


LONG = {"retry-after": "60"}  # gRPC repeats a call that may be repeated sooner
STATUSES = [
    (refusal(400, "bad temperature"), InvalidRequest, ErrorCode.CONFIG_INVALID, "bad temperature"),
    (refusal(422, "bad"), InvalidRequest, ErrorCode.CONFIG_INVALID, "bad"),
    (
        refusal(400, "This model's maximum context length is 10 tokens"),
        InvalidRequest,
        ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
        "maximum context",
    ),
    (
        refusal(400, "no", code="context_length_exceeded"),
        InvalidRequest,
        ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
        "refuses",
    ),
    (refusal(400, "response_format: bad"), InvalidRequest, ErrorCode.CONSTRAINT_GRAMMAR_INVALID, "response_format"),
    (refusal(401, "key sk-123"), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "refuses the key .401.: set"),
    (refusal(403), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "refuses the key"),
    (refusal(404), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "check url and model"),
    (refusal(307, headers={"location": "/v1/x"}), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "307"),
    (refusal(429, headers=LONG), Overloaded, ErrorCode.INFERENCE_OVERLOADED, "is overloaded"),
    (refusal(500), Unavailable, ErrorCode.INFERENCE_MODEL_UNAVAILABLE, "answers 500"),
    (refusal(503), Unavailable, ErrorCode.INFERENCE_MODEL_UNAVAILABLE, "answers 503"),
    (Response("<html>", 502), Unavailable, ErrorCode.INFERENCE_MODEL_UNAVAILABLE, "answers 502"),
]


@pytest.mark.parametrize(("answer", "cls", "code", "text"), STATUSES)
async def test_a_status_has_its_code(engine, stub_of, answer, cls, code, text):  # noqa: PLR0917 - a table's columns
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    engine.script = answer
    with pytest.raises(cls, match=text) as failed:
        await ask(stub)
    assert failed.value.code is code
    assert "sk-123" not in str(failed.value)
    assert len(engine.asked) == 1  # the library repeats nothing


@pytest.mark.parametrize(
    ("given", "expected_s"),
    [("70", 70.0), ("0.5", 0.5), ("99999", 3600.0), ("soon", 1.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.1)],
)
async def test_the_time_of_another_attempt_is_the_engines(engine, stub_of, given, expected_s):
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    engine.script = refusal(429, headers={"retry-after": given})
    with pytest.raises(Overloaded) as failed:
        await ask(stub)
    assert failed.value.retry_after_s == expected_s


STREAMS = [
    ([event({"choices": "no"})], "cannot be read"),
    (["data: {not json\n\n"], "cannot be read"),
    ([b"data: \xff\xfe\n\n"], "cannot be read"),
    (["data: " + "[" * 100_000 + "\n\n"], "cannot be read"),
    ([choice(index=1, content="x")], "candidate 1 of 1"),
    ([choice(index=-1, content="x")], "candidate -1 of 1"),
    ([choice(content="a"), DONE], "ended its stream before candidate 0"),
    ([], "ended its stream before candidate 0"),
    (["hello, I am no stream"], "ended its stream before"),
    ([call_piece(0, "c", "stock", "{}"), *ended("tool_calls")], "of a tool that was not offered"),
    ([choice(content="a"), *ended("tool_calls")], "no tool call"),
]


@pytest.mark.parametrize(("script", "text"), STREAMS)
async def test_a_stream_of_another_form_is_malformed(engine, stub_of, script, text):
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    engine.script = script
    with pytest.raises(Internal, match=text) as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE
    engine.script = spoken("fine")
    assert text_of(await ask(stub)) == "fine"


async def test_an_end_by_a_filter_is_the_engines_failure(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    engine.script = [choice(content="a"), *ended("content_filter")]
    with pytest.raises(Internal, match="content_filter") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR


async def test_halves_of_surrogate_pairs_become_replacement_characters(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    engine.script = ['data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n', *ended()]
    assert text_of(await ask(stub)) == "a\ufffd"


@pytest.mark.parametrize(
    "script",
    [
        [choice(content="x" * 1000)] * 100,
        [b"data: " + b"x" * (MAX_EVENT_BYTES + 10)],
        refusal(400, "x" * 200_000),
        Response("{}", media_type="application/json"),
        Response(gzip.compress(b"x" * 1000), headers={"content-encoding": "gzip"}),
    ],
)
async def test_an_answer_that_is_too_large_or_compressed_is_not_read(engine, stub_of, script):
    limit = 20_000 if not isinstance(script, list) or len(script) > 1 else 2 * MAX_EVENT_BYTES
    stub = await stub_of(models_of({"big": remote(engine.url, max_answer_bytes=limit)}))
    engine.script = script
    with pytest.raises(Internal, match=r"more than|compresses|no stream") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE


async def test_a_stream_that_breaks_after_its_first_token_ends_clearly(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    engine.script = [choice(content="a"), OSError("gone")]
    told = []

    async def read():
        async for event_ in call_stream("inference", stub.Infer, pb.InferRequest(text="x"), 10.0):
            told.append(event_.WhichOneof("event"))  # noqa: PERF401 - what came before the failure counts

    with pytest.raises(Unavailable, match="the connection broke") as failed:
        await read()
    assert told == ["started", "delta"]
    assert failed.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "no-such-host.invalid"])
async def test_an_engine_that_is_away_is_said_to_be_and_breaks_nothing(stub_of, host):
    (port,) = free_ports(1)
    models = models_of({"big": remote(f"http://{host.format(port=port)}/v1")})
    stub = await stub_of(models)
    watching = asyncio.create_task(wait_until_broken(models, step_timeout_s=0.01, clock=SystemClock(), interval_s=0.01))
    with pytest.raises(Unavailable, match="cannot be reached") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
    assert failed.value.retry_after_s
    await asyncio.sleep(0.1)
    assert not watching.done()
    watching.cancel()


async def test_silence_ends_at_the_limit_of_the_alias(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url, timeout_s=0.2)}))
    hold = Hold()
    engine.script = [choice(content="a"), hold]
    with pytest.raises(Unavailable, match=r"silent for 0\.2 s|in time|broke") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
    await asyncio.wait_for(hold.left.wait(), 5)


async def test_comments_that_keep_a_stream_open_are_silence(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url, timeout_s=0.3)}))

    async def ping():
        while True:
            yield ": ping\n\n"
            await asyncio.sleep(0.05)

    engine.script = StreamingResponse(ping(), media_type="text/event-stream")
    with pytest.raises(Unavailable, match="silent for"):
        await ask(stub)


async def test_the_callers_deadline_ends_the_call_at_the_engine(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    hold = Hold()
    engine.script = hold
    with pytest.raises(DeadlineExceeded):
        await ask(stub, timeout_s=0.3)
    await asyncio.wait_for(hold.left.wait(), 5)


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_cancelled_caller_is_gone_from_the_engine_at_once(engine, stub_of, is_streaming):
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    hold = Hold()
    engine.script = [choice(content="a"), hold] if is_streaming else hold
    call = stub.Infer(pb.InferRequest(text="hi"))
    await asyncio.wait_for(hold.reached.wait(), 5)
    call.cancel()
    await asyncio.wait_for(hold.left.wait(), 5)
    engine.script = spoken("next")
    assert text_of(await ask(stub)) == "next"


async def test_calls_beyond_the_limit_wait_and_beyond_the_queue_are_refused(engine, stub_of):
    stub = await stub_of(models_of({"big": remote(engine.url, max_concurrent=1, queue_capacity=1)}))
    hold = Hold()
    engine.script = [hold, *spoken("x")]
    calls = [asyncio.create_task(ask(stub)) for _ in range(2)]
    await asyncio.wait_for(hold.reached.wait(), 5)
    async with asyncio.timeout(5):
        while (load := await call_unary("inference", stub.GetLoad, pb.GetLoadRequest())).queued_requests < 1:  # noqa: ASYNC110 - it is over there
            await asyncio.sleep(0.01)
    assert (load.running_sequences, load.sequence_capacity, load.queue_capacity) == (1, 1, 1)
    with pytest.raises(Overloaded) as refused:
        await ask(stub)
    assert refused.value.retry_after_s
    assert len(engine.asked) == 1
    hold.release.set()
    assert [text_of(events) for events in await asyncio.gather(*calls)] == ["x", "x"]
    load = await call_unary("inference", stub.GetLoad, pb.GetLoadRequest())
    assert (load.running_sequences, load.queued_requests, load.output_tokens_total) == (0, 0, 14)


async def test_an_engine_that_never_closes_its_stream_does_not_hold_back_the_answer(engine, stub_of, monkeypatch):
    monkeypatch.setattr("services.inference.app.remote.COUNTS_PATIENCE_S", 0.1)
    stub = await stub_of(models_of({"big": remote(engine.url)}))
    engine.script = [choice(content="a"), choice(finish_reason="stop"), Hold()]
    events = await ask(stub)
    assert text_of(events) == "a"
    assert events[-1].completed.usage.output_tokens == 1
