"""Inferences over several replicas: the one that answers first, and what happens when one is full, new or gone."""

import asyncio
import contextlib
import time

import grpc
import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.domain.messages import Message, Role, ToolChoice
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.peer import pass_on
from pagantic_common.testing.scripted_engine import ScriptedEngine, random_logits
from services.inference.app.models import Models, ModelSpec
from services.orchestrator.adapters.inference.addresses import ServiceAddress, parse_address
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import InferenceOutput
from services.orchestrator.core.turn.answering import Infer
from tests.integration.orchestrator.test_grpc_inference import COMPLETED, STARTED, delta, end
from tests.support.inference_app import generation_over, registration_of
from tests.support.inference_app import served as served_model
from tests.support.scripted_peers import ScriptedInference, served

TEXT = "Lighthouses are there for ships, which must not come too near to the rocks. " * 20


class App:
    """A replica with a scripted engine."""

    def __init__(self, engine=None, **options):
        self.engine = engine or ScriptedEngine("abc", context_window=4000, kv_capacity_tokens=16000)
        self.generation = generation_over(self.engine, max_parked_bytes=100_000, **options)
        self.models = Models([ModelSpec(self.engine.model, 0)], lambda _spec: served_model(self.generation))

    def registration(self):
        return registration_of(self.models)

    @property
    def calls(self):
        return self.generation.loop.scheduler._numbers


@contextlib.asynccontextmanager
async def replicas_of(*apps):
    """Serve each app on a port of its own; yield the servers and the ports."""
    async with contextlib.AsyncExitStack() as stack:
        started = [await stack.enter_async_context(served(app)) for app in apps]
        for app in apps:
            if isinstance(app, App):
                stack.push_async_callback(app.generation.close)
                await stack.enter_async_context(app.models.use(""))
        yield [server for server, _ in started], [port for _, port in started]


@contextlib.asynccontextmanager
async def inference_over(ports, *, busy_patience_s=0.0, address=None, waits_for=None):
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    options = {"max_message_bytes": MAX_MESSAGE_BYTES}
    async with (
        open_channel(target, **options, waits=["Infer"]) as channel,
        ReplicaSet(
            address or parse_address(target),
            lambda one: open_channel(one, **options, replica_of="inference"),
            pass_on,
            b"",
            interval_s=0.05,
        ) as replicas,
    ):
        wanted = len(ports) if waits_for is None else waits_for
        await until(lambda: sum(not one.is_away for one in replicas._replicas.values()) >= wanted)
        yield GrpcInference(channel, 5.0, busy_patience_s, replicas=replicas), replicas


async def until(is_so, within_s=20.0):
    end_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.02)


async def ask(inference, text=TEXT, **hints):
    command = Infer((Message(Role.USER, text),), (), ToolChoice(), "", None, max_tokens=3)
    pieces = [piece async for piece in inference.infer(command, Hints(**hints))]
    assert isinstance(pieces[-1], InferenceOutput)
    return pieces[-1]


async def test_a_conversation_stays_where_its_beginning_is_cached():
    apps = [App(), App(), App()]
    async with replicas_of(*apps) as (_, ports), inference_over(ports) as (inference, _):
        for turn in range(6):
            await ask(inference, TEXT + " and then" * turn)
            await asyncio.sleep(0.1)
    assert sorted(app.calls for app in apps) == [0, 0, 6]


async def test_two_orchestrators_find_what_the_other_one_has_computed():
    apps = [App(), App(), App()]
    async with (
        replicas_of(*apps) as (_, ports),
        inference_over(ports) as (first, _),
        inference_over(ports) as (second, _),
    ):
        await ask(first)
        await asyncio.sleep(0.3)
        output = await ask(second)
    assert output.usage.cached_prompt_tokens > len(TEXT) * 0.9


async def test_different_prompts_at_once_are_spread():
    apps = [App(), App(), App()]
    async with replicas_of(*apps) as (_, ports), inference_over(ports) as (inference, _):
        await asyncio.gather(*(ask(inference, f"{number} {TEXT}") for number in range(9)))
    assert min(app.calls for app in apps) >= 2


async def refusing(_number):
    raise Overloaded("full", code=ErrorCode.INFERENCE_OVERLOADED, retry_after_s=1.0)
    yield


async def answering(_number):
    yield STARTED
    yield delta("hi")
    yield end()
    yield COMPLETED


async def test_a_full_replica_costs_nothing_while_another_has_room():
    full, free = ScriptedInference(refusing), ScriptedInference(answering)
    async with replicas_of(full, free) as (_, ports), inference_over(ports) as (inference, _):
        for number in range(8):
            assert (await ask(inference, f"{number} {TEXT}")).content == "hi"
    assert (full.calls > 0, free.calls) == (True, 8)


async def test_when_all_are_full_the_call_waits_in_line_as_before():
    async def full_at_first(number):
        async for response in refusing(number) if number <= 2 else answering(number):
            yield response

    replicas = [ScriptedInference(full_at_first), ScriptedInference(full_at_first)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports, busy_patience_s=10.0) as (inference, _):
        assert (await ask(inference)).content == "hi"


async def test_a_replica_that_dies_costs_no_call():
    apps = [App(), App()]
    async with replicas_of(*apps) as (servers, ports), inference_over(ports) as (inference, _):
        await ask(inference)
        holder = max(range(2), key=lambda index: apps[index].calls)
        await servers[holder].stop(grace=0)
        for _ in range(3):
            await ask(inference)
    assert (apps[holder].calls, apps[1 - holder].calls) == (1, 3)


async def test_an_error_of_the_request_itself_is_not_asked_of_another():
    async def wrong(_number):
        raise InvalidRequest("the prompt is empty")
        yield

    replicas = [ScriptedInference(wrong), ScriptedInference(wrong)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        with pytest.raises(InvalidRequest):
            await ask(inference)
    assert sum(replica.calls for replica in replicas) == 1


async def test_nothing_is_repeated_after_the_first_response():
    async def broken(_number):
        yield STARTED
        yield delta("h")
        raise Overloaded("full", code=ErrorCode.INFERENCE_OVERLOADED, retry_after_s=1.0)

    replicas = [ScriptedInference(broken), ScriptedInference(broken)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        with pytest.raises(Overloaded):
            await ask(inference)
    assert sum(replica.calls for replica in replicas) == 1


async def test_replicas_that_report_nothing_share_the_calls():
    replicas = [ScriptedInference(answering), ScriptedInference(answering)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        await asyncio.gather(*(ask(inference, f"{number} {TEXT}") for number in range(8)))
    assert sorted(replica.calls for replica in replicas) == [4, 4]


class Listed:
    """An address whose replicas the test changes."""

    host = "inference"

    def __init__(self, ports):
        self.ports = ports

    async def resolve(self):
        return tuple(f"ipv4:127.0.0.1:{port}" for port in self.ports)


async def test_replicas_come_and_go_and_running_calls_end(monkeypatch):
    monkeypatch.setattr("services.orchestrator.adapters.inference.replica_set.RESOLVE_S", 0.05)
    released = asyncio.Event()

    async def slow(_number):
        yield STARTED
        await released.wait()
        yield delta("slow")
        yield end()
        yield COMPLETED

    old, other, new = ScriptedInference(slow), ScriptedInference(slow), ScriptedInference(answering)
    async with replicas_of(old, other, new) as (_, ports):
        address = Listed(ports[:2])
        async with inference_over(ports[:2], address=address) as (inference, replicas):
            running = asyncio.create_task(ask(inference))
            await until(lambda: old.calls + other.calls)
            address.ports = ports[1:]
            await until(lambda: f"ipv4:127.0.0.1:{ports[2]}" in replicas._replicas)
            address.ports = ports[2:]
            await until(lambda: len(replicas._replicas) == 1)
            released.set()
            assert (await running).content == "slow"


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("127.0.0.1:50052", None),
        ("localhost:50052", None),
        ("unix:/tmp/socket", None),
        ("dns:///inference:50052", ServiceAddress("inference", 50052)),
        ("dns:inference:50052", ServiceAddress("inference", 50052)),
        ("dns://8.8.8.8/inference.ai.svc:1", ServiceAddress("inference.ai.svc", 1)),
        ("dns:///inference", None),
        ("ipv4:10.0.0.1:1,10.0.0.2:2", ServiceAddress("10.0.0.1", listed=("ipv4:10.0.0.1:1", "ipv4:10.0.0.2:2"))),
        ("ipv6:[::1]:1,[::2]:1", ServiceAddress("[::1]", listed=("ipv6:[::1]:1", "ipv6:[::2]:1"))),
    ],
)
def test_addresses_in_the_forms_of_grpc(given, known):
    assert parse_address(given) == known


async def test_a_name_is_resolved():
    assert await ServiceAddress("127.0.0.1", 7).resolve() == ("ipv4:127.0.0.1:7",)
    assert await ServiceAddress("::1", 7).resolve() == ("ipv6:[::1]:7",)
    with pytest.raises(OSError, match=r".+"):
        await ServiceAddress("no-such-host.invalid", 7).resolve()


async def test_the_prompts_keys_are_sent_along():
    requests = []

    async def keep(_number, request):
        requests.append(request)
        async for response in answering(0):
            yield response

    replicas = [ScriptedInference(keep, with_request=True), ScriptedInference(keep, with_request=True)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        await ask(inference)
    (request,) = requests
    assert isinstance(request, pb.InferRequest)
    assert len(request.prefixes.keys) == request.prefixes.prompt_bytes // request.prefixes.block_bytes > 4


async def test_one_replica_alone_is_called_as_ever():
    app = App()
    async with replicas_of(app) as (_, ports), inference_over(ports) as (inference, replicas):
        assert not replicas.has_choice
        assert (await ask(inference)).content == "abc"


async def test_grpc_takes_the_options_of_a_replica():
    channel = open_channel("ipv4:127.0.0.1:1", max_message_bytes=1000, replica_of="inference")
    assert isinstance(channel, grpc.aio.Channel)


def dying(tokens_of_delta, then=None):
    """Answer a few deltas and die; a request with said tokens is answered by `then`."""

    async def behave(_number, request):
        if request.said_tokens:
            async for response in then(request):
                yield response
            return
        yield STARTED
        for content, tokens in tokens_of_delta:
            response = delta(content)
            response.delta.tokens.extend(tokens)
            yield response
        raise Unavailable("the process is gone")

    return ScriptedInference(behave, with_request=True)


async def goes_on(request):
    yield STARTED
    first = delta("hel")
    first.delta.tokens.extend(request.said_tokens)
    yield first
    yield delta("lo")
    yield end()
    yield COMPLETED


async def test_another_replica_continues_the_answer_of_one_that_is_lost():
    replicas = [dying([("h", [1]), ("e", [2, 3])], goes_on) for _ in range(2)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        command = Infer((Message(Role.USER, TEXT),), (), ToolChoice(), "", None, max_tokens=9)
        pieces = [piece async for piece in inference.infer(command, Hints())]
    assert "".join(piece.content for piece in pieces[:-1]) == pieces[-1].content == "hello"
    assert [piece.continued_after_tokens for piece in pieces[:-1]].count(None) == len(pieces) - 2
    assert [replica.calls for replica in replicas] == [1, 1]


async def test_an_answer_without_a_token_yet_begins_again_on_another_replica():
    async def refuses(_number, request):
        assert not request.said_tokens
        async for response in answering(0):
            yield response

    lost, other = dying([]), ScriptedInference(refuses, with_request=True)
    async with replicas_of(lost, other) as (_, ports), inference_over(ports) as (inference, _):
        for number in range(6):
            assert (await ask(inference, f"{number} {TEXT}")).content == "hi"


async def nothing_left(_request):
    raise InvalidRequest("said_tokens end the answer: nothing is left to say")
    yield


@pytest.mark.parametrize("then", [nothing_left, None])
async def test_an_answer_that_cannot_be_continued_is_lost_with_its_replica(then):
    deltas = [("h", [1])] if then else [("h", [])]  # another engine reports no tokens
    replicas = [dying(deltas, then) for _ in range(2)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        with pytest.raises(Unavailable, match="the process is gone"):
            await ask(inference)


async def test_an_answer_is_continued_once_where_nobody_announced_the_loss():
    async def dying_again(_request):
        yield STARTED
        raise Unavailable("gone, too")

    replicas = [dying([("h", [1])], dying_again) for _ in range(3)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        with pytest.raises(Unavailable, match="gone, too"):
            await ask(inference)
    assert sum(replica.calls for replica in replicas) == 2


async def test_an_answer_is_continued_after_each_loss_that_was_announced():
    leaving = [asyncio.Event() for _ in range(3)]

    class Leaving(ScriptedInference):
        """Ends its reports once it begins to answer, and then the answer, after a token more than was said."""

        def __init__(self, number):
            super().__init__(None, with_request=True)
            self._number = number

        async def WatchReplica(self, request, context):
            yield pb.WatchReplicaResponse()
            await leaving[self._number].wait()

        async def Infer(self, request, context):
            self.calls += 1
            yield STARTED
            said = list(request.said_tokens)
            response = delta("hello"[: len(said) + 1])
            response.delta.tokens.extend([*said, 1])
            yield response
            leaving[self._number].set()
            await asyncio.sleep(0.3)
            if len(said) < 2:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "it stops")
            yield delta("hello"[len(said) + 1 :])
            yield end()
            yield COMPLETED

    replicas = [Leaving(number) for number in range(3)]
    async with replicas_of(*replicas) as (_, ports), inference_over(ports) as (inference, _):
        assert (await ask(inference)).content == "hello"
    assert [replica.calls for replica in replicas] == [1, 1, 1]


async def test_an_answer_comes_back_to_its_replica_where_no_other_one_is_there():
    back, gone = dying([("h", [1])], goes_on), ScriptedInference(None)
    async with replicas_of(back, gone) as (servers, ports), inference_over(ports) as (inference, _):
        await servers[1].stop(grace=0)
        assert (await ask(inference)).content == "hello"
    assert (back.calls, gone.calls) == (2, 0)


async def test_a_killed_replicas_answer_is_continued_word_for_word():
    engines = [ScriptedEngine(logits_of=random_logits, context_window=4000, kv_capacity_tokens=16000) for _ in range(2)]
    apps = [App(engine=engine) for engine in engines]
    command = Infer((Message(Role.USER, TEXT),), (), ToolChoice(), "", 5, max_tokens=200, temperature=1.0)
    async with replicas_of(*apps) as (servers, ports), inference_over(ports) as (inference, _):
        whole = [piece async for piece in inference.infer(command, Hints())][-1].content
        holder = max(range(2), key=lambda index: apps[index].calls)
        pieces = []
        async for piece in inference.infer(command, Hints()):
            pieces.append(piece)
            if len(pieces) == 3:
                await servers[holder].stop(grace=0)
    assert "".join(piece.content for piece in pieces[:-1]) == pieces[-1].content == whole
    assert apps[1 - holder].calls == 1
