"""The models of a service over its port: which are loaded, and loading and unloading them on demand."""

import pytest

from gateway.cli.models.listing import rows_of
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import Aborted, ErrorCode, InvalidRequest
from pagantic_common.rpc.call import call_unary
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.app.models import Models, ModelSpec
from services.inference.servicer import SCOPES
from tests.support.inference_app import generation_over, served


def models_over(engine):
    async def load(_spec):
        return await served(generation_over(engine))

    return Models([ModelSpec(engine.model, 5_000_000)], load)


async def states(stub):
    listed = await call_unary("inference", stub.ListModels, pb.ListModelsRequest(), 10.0)
    return [(state.is_loaded, state.memory_bytes, state.running) for state in listed.states]


async def test_a_model_is_loaded_and_unloaded_on_demand(stub_of):
    stub = await stub_of(models_over(ScriptedEngine("hi")))
    assert await states(stub) == [(False, 5_000_000, 0)]
    loaded = await call_unary("inference", stub.LoadModel, pb.LoadModelRequest(), 10.0)
    assert loaded.model.name == "scripted"
    assert await states(stub) == [(True, 5_000_000, 0)]
    for was_loaded in (True, False):
        request = pb.UnloadModelRequest(model="scripted")
        assert (await call_unary("inference", stub.UnloadModel, request, 10.0)).was_loaded is was_loaded
    assert await states(stub) == [(False, 5_000_000, 0)]


async def test_a_model_in_use_is_not_unloaded(stub_of):
    models = models_over(ScriptedEngine("hi"))
    stub = await stub_of(models)
    async with models.use(""):
        assert await states(stub) == [(True, 5_000_000, 1)]
        with pytest.raises(Aborted, match="in use"):
            await call_unary("inference", stub.UnloadModel, pb.UnloadModelRequest(), 10.0)
    await call_unary("inference", stub.UnloadModel, pb.UnloadModelRequest(), 10.0)


@pytest.mark.parametrize(
    ("method", "request_type"), [("LoadModel", pb.LoadModelRequest), ("UnloadModel", pb.UnloadModelRequest)]
)
async def test_an_unknown_model_is_named_with_those_that_are_served(stub_of, method, request_type):
    stub = await stub_of(models_over(ScriptedEngine("hi")))
    with pytest.raises(InvalidRequest, match="'x': this service has 'scripted'") as refused:
        await call_unary("inference", getattr(stub, method), request_type(model="x"), 10.0)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    assert SCOPES[method] is Scope.ADMIN


async def test_the_command_shows_what_is_served_first_and_a_service_without_states_too(stub_of):
    stub = await stub_of(models_over(ScriptedEngine("hi")))
    listed = await call_unary("inference", stub.ListModels, pb.ListModelsRequest(), 10.0)
    (row,) = rows_of([], listed)
    assert (row.status, row.held_bytes, row.size_bytes) == ("not loaded, default", 0, 5_000_000)
    assert row.as_json()["loaded"] is False
    (old,) = rows_of([], pb.ListModelsResponse(models=listed.models))
    assert (old.status, old.size_bytes) == ("served, default", 0)
