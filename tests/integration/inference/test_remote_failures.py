"""Every way in which a remote engine fails has its code, and leaves nothing behind, by each protocol."""

import asyncio
import gzip

import pytest
from starlette.responses import Response, StreamingResponse

from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.client import user_message
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
from tests.support.engine_protocols import OPENAI
from tests.support.engine_server import Hold, choice, engine_server
from tests.support.ports import free_ports
from tests.support.remote_app import models_of, remote

PROTOCOLS = (OPENAI,)


@pytest.fixture(params=PROTOCOLS, ids=str)
def protocol(request):
    return request.param


@pytest.fixture
async def engine(protocol):
    async with engine_server() as served:
        served.stream_type = protocol.stream_type
        yield served


def far_models(protocol, server, **fields):
    """Return models with one remote model, whose engine is at a server's address."""
    return models_of({"big": remote(server.removesuffix("/v1") + protocol.path, **protocol.settings, **fields)})


@pytest.fixture
def serve(engine, protocol, stub_of):
    """Return what serves one remote model with these fields."""

    async def serve_with(**fields):
        return await stub_of(far_models(protocol, engine.url, **fields))

    return serve_with


def spoken(protocol, *pieces):
    return [*map(protocol.piece, pieces), *protocol.ended("stop")]


CHAT = pb.InferRequest(chat=generation_pb2.ChatPrompt(messages=[user_message("hi")]))


async def ask(stub, timeout_s=10.0):
    return [event async for event in call_stream("inference", stub.Infer, CHAT, timeout_s)]


def text_of(events):
    return "".join(event.delta.content for event in events)


LONG = {"retry-after": "60"}  # gRPC repeats a call that may be repeated sooner
STATUSES = [
    ((400, "bad temperature"), InvalidRequest, ErrorCode.CONFIG_INVALID, "bad temperature"),
    ((422, "bad"), InvalidRequest, ErrorCode.CONFIG_INVALID, "bad"),
    (
        (400, "This model's maximum context length is 10 tokens"),
        InvalidRequest,
        ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
        "maximum context",
    ),
    ((400, "response_format: bad"), InvalidRequest, ErrorCode.CONSTRAINT_GRAMMAR_INVALID, "response_format"),
    ((401, "key sk-123"), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "refuses the key .401.: set"),
    ((403, "no"), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "refuses the key"),
    ((404, "no"), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "check url and model"),
    ((307, "no", {"location": "/v1/x"}), PreconditionFailed, ErrorCode.CONFIG_NO_ENGINE, "307"),
    ((429, "no", LONG), Overloaded, ErrorCode.INFERENCE_OVERLOADED, "is overloaded"),
    ((500, "no"), Unavailable, ErrorCode.INFERENCE_MODEL_UNAVAILABLE, "answers 500"),
    ((503, "no"), Unavailable, ErrorCode.INFERENCE_MODEL_UNAVAILABLE, "answers 503"),
    (Response("<html>", 502), Unavailable, ErrorCode.INFERENCE_MODEL_UNAVAILABLE, "answers 502"),
]


@pytest.mark.parametrize(("answer", "cls", "code", "text"), STATUSES)
async def test_a_status_has_its_code(engine, serve, protocol, answer, cls, code, text):  # noqa: PLR0917 - a table's columns
    stub = await serve()
    engine.script = answer if isinstance(answer, Response) else protocol.refusal(*answer)
    with pytest.raises(cls, match=text) as failed:
        await ask(stub)
    assert failed.value.code is code
    assert "sk-123" not in str(failed.value)
    assert len(engine.asked) == 1  # the library repeats nothing


@pytest.mark.parametrize("protocol", [OPENAI], indirect=True, ids=str)
async def test_a_status_may_have_its_reason_in_openais_code(engine, serve, protocol):
    stub = await serve()
    engine.script = protocol.refusal(400, "no", code="context_length_exceeded")
    with pytest.raises(InvalidRequest, match="refuses") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    ("given", "expected_s"),
    [("70", 70.0), ("0.5", 0.5), ("99999", 3600.0), ("soon", 1.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.1)],
)
async def test_the_time_of_another_attempt_is_the_engines(engine, serve, protocol, given, expected_s):
    stub = await serve()
    engine.script = protocol.refusal(429, "no", {"retry-after": given})
    with pytest.raises(Overloaded) as failed:
        await ask(stub)
    assert failed.value.retry_after_s == expected_s


STREAMS = [
    (protocol, *row)
    for protocol in PROTOCOLS
    for row in (
        *protocol.malformed,
        ([], "ended its stream before candidate 0"),
        ([protocol.piece("a")], "ended its stream before candidate 0"),
        ([protocol.call("stock", "{}"), *protocol.ended("tool_calls")], "of a tool that was not offered"),
        ([protocol.piece("a"), *protocol.ended("tool_calls")], "no tool call"),
    )
]


@pytest.mark.parametrize(
    ("protocol", "script", "text"), STREAMS, indirect=["protocol"], ids=lambda value: getattr(value, "name", None)
)
async def test_a_stream_of_another_form_is_malformed(engine, serve, protocol, script, text):
    stub = await serve()
    engine.script = script
    with pytest.raises(Internal, match=text) as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE
    engine.script = spoken(protocol, "fine")
    assert text_of(await ask(stub)) == "fine"


async def test_an_end_by_a_filter_is_the_engines_failure(engine, serve, protocol):
    stub = await serve()
    engine.script = [protocol.piece("a"), *protocol.ended("content_filter")]
    with pytest.raises(Internal, match="content_filter") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR


async def test_an_error_in_the_stream_ends_it_clearly(engine, serve, protocol):
    stub = await serve()
    engine.script = [protocol.piece("a"), protocol.error("CUDA error")]
    with pytest.raises(Internal, match="CUDA error") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR


async def test_halves_of_surrogate_pairs_become_replacement_characters(engine, serve, protocol):
    stub = await serve()
    engine.script = spoken(protocol, "a\ud83d")
    assert text_of(await ask(stub)) == "a\ufffd"


@pytest.mark.parametrize(
    "answer",
    [
        lambda protocol: [protocol.piece("x" * 1000)] * 100,
        lambda protocol: [protocol.piece("x" * (MAX_EVENT_BYTES + 10)).rstrip()],
        lambda protocol: protocol.refusal(400, "x" * 200_000),
        lambda _protocol: Response("{}", media_type="application/json"),
        lambda _protocol: Response(gzip.compress(b"x" * 1000), headers={"content-encoding": "gzip"}),
    ],
    ids=["many events", "a large event", "a large refusal", "no stream", "compressed"],
)
async def test_an_answer_that_is_too_large_or_compressed_is_not_read(engine, serve, protocol, answer):
    script = answer(protocol)
    limit = 20_000 if not isinstance(script, list) or len(script) > 1 else 2 * MAX_EVENT_BYTES
    stub = await serve(max_answer_bytes=limit)
    engine.script = script
    with pytest.raises(Internal, match=r"more than|compresses|no stream") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE


async def test_a_stream_that_breaks_after_its_first_token_ends_clearly(engine, serve, protocol):
    stub = await serve()
    engine.script = [protocol.piece("a"), OSError("gone")]
    told = []

    async def read():
        async for event_ in call_stream("inference", stub.Infer, CHAT, 10.0):
            told.append(event_.WhichOneof("event"))  # noqa: PERF401 - what came before the failure counts

    with pytest.raises(Unavailable, match="the connection broke") as failed:
        await read()
    assert told == ["started", "delta"]
    assert failed.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "no-such-host.invalid"])
async def test_an_engine_that_is_away_is_said_to_be_and_breaks_nothing(stub_of, protocol, host):
    (port,) = free_ports(1)
    models = far_models(protocol, f"http://{host.format(port=port)}")
    stub = await stub_of(models)
    watching = asyncio.create_task(wait_until_broken(models, step_timeout_s=0.01, clock=SystemClock(), interval_s=0.01))
    with pytest.raises(Unavailable, match="cannot be reached") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
    assert failed.value.retry_after_s
    await asyncio.sleep(0.1)
    assert not watching.done()
    watching.cancel()


async def test_silence_ends_at_the_limit_of_the_alias(engine, serve, protocol):
    stub = await serve(timeout_s=0.2)
    hold = Hold()
    engine.script = [protocol.piece("a"), hold]
    with pytest.raises(Unavailable, match=r"silent for 0\.2 s|in time|broke") as failed:
        await ask(stub)
    assert failed.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
    if hold.reached.is_set():  # On a busy machine, the engine may be silent before it says anything.
        await asyncio.wait_for(hold.left.wait(), 60)


@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol.quiet], indirect=True, ids=str)
async def test_parts_without_content_that_keep_a_stream_open_are_silence(engine, serve, protocol):
    stub = await serve(timeout_s=0.3)

    async def ping():
        while True:
            yield protocol.quiet
            await asyncio.sleep(0.05)

    engine.script = StreamingResponse(ping(), media_type=protocol.stream_type)
    with pytest.raises(Unavailable, match="silent for"):
        await ask(stub)


async def test_the_callers_deadline_ends_the_call_at_the_engine(engine, serve):
    stub = await serve()
    hold = Hold()
    engine.script = hold
    timeout_s = 0.3
    while not hold.reached.is_set():  # A busy machine may need more time to reach the engine.
        with pytest.raises(DeadlineExceeded):
            await ask(stub, timeout_s=timeout_s)
        timeout_s *= 2
    await asyncio.wait_for(hold.left.wait(), 60)


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_cancelled_caller_is_gone_from_the_engine_at_once(engine, serve, protocol, is_streaming):
    stub = await serve()
    hold = Hold()
    engine.script = [protocol.piece("a"), hold] if is_streaming else hold
    call = stub.Infer(CHAT)
    await asyncio.wait_for(hold.reached.wait(), 60)
    call.cancel()
    await asyncio.wait_for(hold.left.wait(), 60)
    engine.script = spoken(protocol, "next")
    assert text_of(await ask(stub)) == "next"


async def test_calls_beyond_the_limit_wait_and_beyond_the_queue_are_refused(engine, serve, protocol):
    stub = await serve(max_concurrent=1, queue_capacity=1)
    hold = Hold()
    engine.script = [hold, *spoken(protocol, "x")]
    calls = [asyncio.create_task(ask(stub)) for _ in range(2)]
    await asyncio.wait_for(hold.reached.wait(), 60)
    async with asyncio.timeout(60):
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


@pytest.mark.parametrize("protocol", [OPENAI], indirect=True, ids=str)
async def test_an_engine_that_never_closes_its_stream_does_not_hold_back_the_answer(engine, serve, monkeypatch):
    monkeypatch.setattr("services.inference.app.remote.COUNTS_PATIENCE_S", 0.1)
    stub = await serve()
    engine.script = [choice(content="a"), choice(finish_reason="stop"), Hold()]
    events = await ask(stub)
    assert text_of(events) == "a"
    assert events[-1].completed.usage.output_tokens == 1
