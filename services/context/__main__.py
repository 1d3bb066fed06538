"""Entry point of the context service: `python -m services.context`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial

from threadpoolctl import threadpool_limits

from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.rpc.inference.pools import open_pools
from pagantic_common.rpc.process.program import Program
from services.context.adapters.store.access import StoreAccess
from services.context.app.embedding import BackgroundEmbedding
from services.context.servicer import SCOPES
from services.context.settings import ContextSettings
from services.context.wiring import EMBEDDING_PAUSE_S, make_embedding, make_servicer, open_readers

SERVICE_NAME = "pagantic.context.v1.ContextService"


@asynccontextmanager
async def open_app(
    settings: ContextSettings, *, embedding_pause_s: float = EMBEDDING_PAUSE_S
) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service. On exit, the store is closed last."""
    # Each search uses a single core: searches run concurrently, and a matrix product spread over all cores would wait
    # for the busiest core.
    one_core = threadpool_limits(limits=1, user_api="blas")
    with one_core, closing(await asyncio.to_thread(StoreAccess, settings.read_database_url())) as access:
        async with open_pools(settings) as pools:
            embedding = make_embedding(settings, access, pools, embedding_pause_s)
            guard = guard_of("context", settings)
            async with open_readers(settings) as readers, _running(embedding):
                servicer = make_servicer(settings, access, pools, embedding, readers)
                add_to = partial(pb_grpc.add_ContextServiceServicer_to_server, servicer)
                yield [Registration(SERVICE_NAME, add_to, SCOPES, guard, why_not_ready=access.why_not_ready)]


@asynccontextmanager
async def _running(embedding: BackgroundEmbedding) -> AsyncIterator[None]:
    task = asyncio.create_task(embedding.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


PROGRAM = Program("context", ContextSettings, open_app)

if __name__ == "__main__":
    PROGRAM.run()
