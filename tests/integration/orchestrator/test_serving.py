"""The replicas of inference services as operators see and change them, each over a socket of its own."""

import asyncio
import contextlib

from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import ErrorCode, Unavailable
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.peer import pass_on
from services.orchestrator.adapters.inference.grpc_serving import GrpcServing, InferenceService
from tests.integration.orchestrator.test_replica_set import App, ask, inference_over
from tests.support.scripted_peers import served


@contextlib.asynccontextmanager
async def idle_replicas(*apps):
    """Serve each app on a port of its own; nothing uses its model yet. Yields the servers and the ports."""
    async with contextlib.AsyncExitStack() as stack:
        started = [await stack.enter_async_context(served(app)) for app in apps]
        for app in apps:
            stack.push_async_callback(app.generation.close)
        yield [server for server, _ in started], [port for _, port in started]


@contextlib.asynccontextmanager
async def serving_over(ports, *, pools=None):
    """Yield the services: the default one has replicas at these ports, and each pool is one replica."""
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    async with inference_over(ports) as (inference, replicas), contextlib.AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(target, max_message_bytes=MAX_MESSAGE_BYTES))
        services = [InferenceService(target, channel, replicas)]
        addresses = {}
        for alias, port in (pools or {}).items():
            address = addresses[alias] = f"127.0.0.1:{port}"
            pool = await stack.enter_async_context(open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES))
            services.append(InferenceService(address, pool))
        yield inference, GrpcServing(services, addresses, pass_on)


async def test_each_replica_says_its_load_and_models_and_each_is_changed():
    apps = [App(), App()]
    name = apps[0].engine.model.name
    async with idle_replicas(*apps) as (_, ports), serving_over(ports) as (inference, serving):
        await serving.load_model(name)
        await ask(inference)
        before = await serving.list_replicas()
        unloaded = await serving.unload_model(name)
        without = await serving.list_replicas()
        again = await serving.unload_model(name)
        loaded = await serving.load_model("")
        after = await serving.list_replicas()
    assert [report.address for report in before] == sorted(f"ipv4:127.0.0.1:{port}" for port in ports)
    assert sum(report.load.output_tokens_total for report in before) == 3
    assert {report.load.sequence_capacity for report in before} == {8}
    assert [[model.is_loaded for model in report.models] for report in before] == [[True], [True]]
    assert [(one.was_loaded, one.error) for one in unloaded] == [(True, None), (True, None)]
    assert [[model.is_loaded for model in report.models] for report in without] == [[False], [False]]
    assert [one.was_loaded for one in again] == [False, False]
    assert [one.error for one in loaded] == [None, None]
    assert [[model.is_loaded for model in report.models] for report in after] == [[True], [True]]


async def test_a_replica_that_is_lost_has_its_error_and_an_unknown_model_that_of_each():
    async with idle_replicas(App(), App()) as (servers, ports), serving_over(ports) as (_, serving):
        refused = await serving.load_model("unknown")
        await servers[0].stop(None)
        reports = await serving.list_replicas()
    assert [one.error.code for one in refused] == [ErrorCode.CONFIG_NO_ENGINE] * 2
    lost = [report for report in reports if report.error is not None]
    assert len(lost) == 1
    assert (isinstance(lost[0].error, Unavailable), lost[0].load, lost[0].models) == (True, None, ())


async def test_a_model_of_a_pool_is_shown_and_changed_there_alone():
    default, pool = App(), App()
    name = pool.engine.model.name
    async with (
        idle_replicas(default, pool) as (_, (first, second)),
        serving_over([first], pools={name: second}) as (_, serving),
    ):
        await asyncio.gather(serving.load_model(""), serving.load_model(name))
        reports = await serving.list_replicas()
        changes = await serving.unload_model(name)
        assert default.models.states[0].is_loaded
    assert [[model.info.name for model in report.models] for report in reports] == [[], [name]]
    assert [change.address for change in changes] == [f"127.0.0.1:{second}"]
