"""Measuring asked for over a socket, as `pagantic tune` does."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.rpc.call import call_unary
from pagantic_common.testing.scripted_engine import ScriptedEngine
from pagantic_common.testing.server import serving
from services.inference.app.models import Models, ModelSpec
from tests.support.inference_app import generation_over, registration_of, served
from tests.unit.inference.test_tuner import BUSY_ROUND, GOOD, ScriptedProber, World


@asynccontextmanager
async def tuned(prober, **changes):
    generation = generation_over(ScriptedEngine())
    models = Models([ModelSpec(generation.engine.model, 0)], lambda _spec: served(generation))
    async with models.use(""):
        pass
    tuner = World(prober, **changes).tuner
    running = asyncio.create_task(tuner.run())
    async with serving([registration_of(models, tuner)]) as (channel, address):
        yield rpc.InferenceServiceStub(channel), address
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await models.close()


def run_tune(address, *options):
    return asyncio.to_thread(CliRunner().invoke, app, ["tune", "--address", address, *options])


async def test_what_is_measured_is_described_with_when_and_beside_what():
    async with tuned(ScriptedProber([GOOD] * 20)) as (stub, address):
        done = await run_tune(address)
        assert done.exit_code == 0, done.output
        assert "threads: 2 (a step of 8 sequences took 20.0 ms at 2, 40.0 ms at 4)" in done.stdout
        engine = await call_unary("inference", stub.DescribeEngine, pb.DescribeEngineRequest())
        assert engine.state == pb.TUNING_STATE_MEASURED
        assert engine.measured_at.ToJsonString() == "2026-01-01T00:00:00Z"
        assert list(engine.loaded_models) == ["scripted"]


@pytest.mark.parametrize(
    ("prober", "changes", "options", "said"),
    [
        ([[BUSY_ROUND] * 3], {}, ["--timeout", "1"], "not measured within 1 s: "),
        (None, {"note": "the model decodes no text"}, [], "FAILED_PRECONDITION: nothing is measured here: the model"),
    ],
)
async def test_what_cannot_be_measured_says_why(prober, changes, options, said):
    async with tuned(prober and ScriptedProber(*prober), **changes) as (stub, address):
        done = await run_tune(address, *options)
        assert done.exit_code in (1, 3)
        assert said in done.stderr
        engine = await call_unary("inference", stub.DescribeEngine, pb.DescribeEngineRequest())
        assert engine.state != pb.TUNING_STATE_MEASURED
        assert engine.choices[0].reason.startswith("default")
