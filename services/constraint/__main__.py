"""Entry point of the constraint service: `python -m services.constraint`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from pagantic.constraint.v1 import constraint_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.rpc.inference.pools import open_pools
from pagantic_common.rpc.process.program import Program
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.workers.process_workers import ProcessWorkers
from services.constraint.adapters.grammar_folder import GrammarFolder
from services.constraint.adapters.inference_judge import InferenceJudge
from services.constraint.app.constraints import Constraints
from services.constraint.core.work import Work
from services.constraint.servicer import SCOPES, ConstraintServicer
from services.constraint.settings import ConstraintSettings

COMPILE_CACHE_BYTES = 64 * 1024 * 1024
SERVICE_NAME = "pagantic.constraint.v1.ConstraintService"


@asynccontextmanager
async def open_app(settings: ConstraintSettings) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service. Raises InvalidRequest if the grammars folder or the certificates cannot be used."""
    grammars = GrammarFolder(settings.grammars_folder)
    async with (
        ProcessWorkers(settings.worker_limits(Work.__module__)) as workers,
        open_pools(settings) as pools,
    ):
        constraints = Constraints(
            Work(settings.limits, settings.repair_strategies),
            workers,
            cache_bytes=COMPILE_CACHE_BYTES,
            grammars=grammars,
            judge=InferenceJudge(pools, settings.judge_timeout_s),
            clock=SystemClock(),
        )
        servicer = ConstraintServicer(constraints)
        add_to = partial(pb_grpc.add_ConstraintServiceServicer_to_server, servicer)
        yield [Registration(SERVICE_NAME, add_to, SCOPES, guard_of("constraint", settings))]


PROGRAM = Program("constraint", ConstraintSettings, open_app)

if __name__ == "__main__":
    PROGRAM.run()
