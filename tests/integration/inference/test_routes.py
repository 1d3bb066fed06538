"""Routes over models: remote engines over real sockets, and a scripted local engine."""

import asyncio
import threading

import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.testing.scripted_engine import ScriptedEngine
from tests.support.engine_server import Hold, choice, engine_server, refusal, spoken
from tests.support.inference_app import generation_over
from tests.support.ports import free_ports
from tests.support.remote_app import models_of, remote


@pytest.fixture
async def first():
    async with engine_server() as served:
        yield served


@pytest.fixture
async def second():
    async with engine_server() as served:
        yield served


def local(text="local", **options):
    return generation_over(ScriptedEngine(text, **options))


async def ask(stub, model="best", **fields):
    request = pb.InferRequest(text="hi", model=model, **fields)
    return [event async for event in call_stream("inference", stub.Infer, request, 10.0)]


def answer_of(events):
    return events[0].started.model.name, "".join(event.delta.content for event in events)


async def test_the_first_model_answers_and_no_other_is_asked(first, second, stub_of):
    remotes = {"a": remote(first.url), "b": remote(second.url)}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "b"]}}))
    first.script = spoken("from a")
    assert answer_of(await ask(stub)) == ("a", "from a")
    assert not second.asked


@pytest.mark.parametrize("failing", [refusal(500), refusal(429), refusal(401), ["data: {\n\n"], []])
async def test_a_model_that_fails_before_its_first_token_is_followed_by_the_next(first, stub_of, failing):
    stub = await stub_of(models_of({"a": remote(first.url)}, {"best": {"models": ["a", "scripted"]}}, [local()]))
    first.script = failing
    assert answer_of(await ask(stub, max_tokens=20)) == ("scripted", "local")


async def test_a_model_that_is_away_is_followed_by_the_next(stub_of):
    (port,) = free_ports(1)
    remotes = {"a": remote(f"http://127.0.0.1:{port}/v1")}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "scripted"]}}, [local()]))
    assert answer_of(await ask(stub, max_tokens=20)) == ("scripted", "local")


async def test_a_request_that_is_wrong_is_refused_by_the_first_and_asked_of_no_other(first, second, stub_of):
    remotes = {"a": remote(first.url), "b": remote(second.url)}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "b"]}}))
    first.script = refusal(400, "bad")
    with pytest.raises(InvalidRequest, match="bad"):
        await ask(stub)
    assert not second.asked


async def test_a_route_takes_the_options_that_all_its_models_take(first, second, stub_of):
    remotes = {
        "a": remote(first.url, allowed_options=["effort", "user"]),
        "b": remote(second.url, allowed_options=["effort"]),
    }
    routes = {"best": {"models": ["a", "b"]}, "mixed": {"models": ["a", "scripted"]}}
    stub = await stub_of(models_of(remotes, routes, [local()]))
    first.script, second.script = refusal(500), spoken("from b")
    assert answer_of(await ask(stub, options_json='{"effort":"low"}')) == ("b", "from b")
    assert (first.last["effort"], second.last["effort"]) == ("low", "low")
    first.asked.clear()
    with pytest.raises(InvalidRequest, match=r"model 'best' has no option 'user'.*it takes effort"):
        await ask(stub, options_json='{"user":"me"}')
    with pytest.raises(InvalidRequest, match=r"model 'mixed' has no option 'effort'.*it takes no options"):
        await ask(stub, "mixed", options_json='{"effort":"low"}')
    assert first.asked == []


async def test_after_the_first_token_there_is_no_other_model(first, second, stub_of):
    remotes = {"a": remote(first.url), "b": remote(second.url)}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "b"], "hedge_after_ms": 5000}}))
    first.script = [choice(content="a"), OSError("gone")]
    with pytest.raises(Unavailable, match="broke"):
        await ask(stub)
    assert not second.asked


async def test_when_all_fail_the_last_failure_has_the_others_as_its_causes(first, second, stub_of):
    remotes = {"a": remote(first.url), "b": remote(second.url)}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "b"]}}))
    first.script, second.script = refusal(500), refusal(429, headers={"retry-after": "60"})
    with pytest.raises(Overloaded) as failed:
        await ask(stub)
    assert failed.value.retry_after_s == 60
    assert [cause.code for cause in failed.value.failure.caused_by] == [ErrorCode.INFERENCE_MODEL_UNAVAILABLE]


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_silent_model_is_hedged_and_the_loser_is_cancelled_at_once(first, second, stub_of, is_started):
    remotes = {"a": remote(first.url), "b": remote(second.url)}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "b"], "hedge_after_ms": 50}}))
    hold, slow = Hold(), Hold()
    first.script = [choice(role="assistant", content=""), hold] if is_started else hold
    second.script = [choice(content="from b"), slow, *spoken()]
    call = asyncio.create_task(ask(stub))
    await asyncio.wait_for(hold.left.wait(), 60)  # the winner has not ended yet
    assert not call.done()
    slow.release.set()
    assert answer_of(await call)[0] == "b"


async def test_the_first_one_wins_when_it_speaks_after_the_hedge_began(first, second, stub_of):
    remotes = {"a": remote(first.url), "b": remote(second.url)}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "b"], "hedge_after_ms": 20}}))
    slow, never = Hold(), Hold()
    first.script, second.script = [slow, *spoken("from a")], [never]
    call = asyncio.create_task(ask(stub))
    await asyncio.wait_for(never.reached.wait(), 60)
    slow.release.set()
    assert answer_of(await call) == ("a", "from a")
    await asyncio.wait_for(never.left.wait(), 60)


async def test_a_cancelled_caller_leaves_every_model(first, second, stub_of):
    remotes = {"a": remote(first.url), "b": remote(second.url)}
    stub = await stub_of(models_of(remotes, {"best": {"models": ["a", "b"], "hedge_after_ms": 10}}))
    holds = first.script, second.script = Hold(), Hold()
    call = stub.Infer(pb.InferRequest(text="hi", model="best"))
    for hold in holds:
        await asyncio.wait_for(hold.reached.wait(), 60)
    call.cancel()
    for hold in holds:
        await asyncio.wait_for(hold.left.wait(), 60)


async def test_a_local_model_that_loses_decodes_no_more(first, stub_of):
    reached, go_on = threading.Event(), threading.Event()
    generation = local("x" * 300, on_decode=lambda _slices: reached.set() or go_on.wait(60))
    routes = {"best": {"models": ["scripted", "a"], "hedge_after_ms": 50}}
    stub = await stub_of(models_of({"a": remote(first.url)}, routes, [generation]))
    slow = Hold()
    first.script = [choice(content="from a"), slow, *spoken()]
    call = asyncio.create_task(ask(stub, max_tokens=300))
    await asyncio.to_thread(reached.wait, 5)
    await asyncio.wait_for(slow.reached.wait(), 60)
    await asyncio.sleep(0.2)  # the loser is cancelled while its engine is held
    go_on.set()
    slow.release.set()
    assert answer_of(await call)[0] == "a"
    async with asyncio.timeout(60):
        while generation.loop.scheduler.running:  # noqa: ASYNC110 - the engine tells nobody that it idles
            await asyncio.sleep(0.01)
    assert len(generation.engine.batches) < 10


async def test_a_route_is_listed_with_what_all_its_models_can(first, stub_of):
    routes = {"best": {"models": ["a", "scripted"]}}
    stub = await stub_of(models_of({"a": remote(first.url)}, routes, [local()]))
    listed = (await call_unary("inference", stub.ListModels, pb.ListModelsRequest())).models
    by_name = {model.name: model for model in listed}
    assert set(by_name) == {"a", "best", "scripted"}
    assert list(by_name["best"].capabilities) == ["chat", "route"]
    assert by_name["best"].context_window == min(by_name["a"].context_window, by_name["scripted"].context_window)
    counted = await call_unary("inference", stub.CountTokens, pb.CountTokensRequest(model="best", texts=["abcd"]))
    assert counted.is_estimate
    with pytest.raises(InvalidRequest) as refused:
        await call_unary("inference", stub.Score, pb.ScoreRequest(model="best", text="x", continuations=["y"]))
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


@pytest.mark.parametrize(
    ("routes", "wrong"),
    [
        ({"best": {"models": ["a", "x"]}}, "names model 'x'"),
        ({"best": {"models": ["a", "a"]}}, "names a model twice"),
        ({"best": {"models": ["far"]}}, "takes no conversations"),
        ({"best": {"models": ["a"]}, "more": {"models": ["best"]}}, "names model 'best'"),
    ],
)
def test_a_route_of_wrong_models_ends_the_start(routes, wrong):
    remotes = {"a": remote("http://x/v1"), "far": remote("http://x/v1", serves="embeddings")}
    with pytest.raises(InvalidRequest, match=wrong):
        models_of(remotes, routes)
