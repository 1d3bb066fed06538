"""Runs the rerank service: `python -m services.rerank`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from pagantic.rerank.v1 import rerank_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.rpc.inference.pools import open_pools
from pagantic_common.rpc.process.program import Program
from services.rerank.servicer import SCOPES, RerankServicer
from services.rerank.settings import RerankSettings
from services.rerank.wiring import make_reranking


@asynccontextmanager
async def open_app(settings: RerankSettings) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service; raises InvalidRequest for a wrong custom or default scorer."""
    async with open_pools(settings) as pools:
        servicer = RerankServicer(make_reranking(settings, pools))
        add_to = partial(pb_grpc.add_RerankServiceServicer_to_server, servicer)
        yield [Registration("pagantic.rerank.v1.RerankService", add_to, SCOPES, guard_of("rerank", settings))]


PROGRAM = Program("rerank", RerankSettings, open_app)

if __name__ == "__main__":
    PROGRAM.run()
