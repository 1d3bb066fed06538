"""Runs the context service: `python -m services.context`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial

from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.rpc.process.program import Program
from pagantic_common.telemetry.clock import SystemClock
from services.context.adapters.inference_token_counter import InferenceTokenCounter
from services.context.adapters.sqlite_store import SqliteStore
from services.context.app.building import ContextBuilding
from services.context.app.library import Library
from services.context.app.retrieval import Retrieval
from services.context.servicer import SCOPES, ContextServicer
from services.context.settings import ContextSettings

SERVICE_NAME = "pagantic.context.v1.ContextService"


@asynccontextmanager
async def open_app(settings: ContextSettings) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service; the store is closed last."""
    path = settings.data_folder / "context.sqlite3"
    with closing(
        SqliteStore(path, SystemClock(), settings.max_chunks_per_collection, settings.max_collections)
    ) as store:
        async with open_service_channel(settings.inference_address, settings) as channel:
            library = Library(store, settings.ingest_bounds, settings.chunk_chars, settings.overlap_chars)
            retrieval = Retrieval(store, settings.max_index_bytes)
            counter = InferenceTokenCounter(channel, settings.inference_timeout_s, settings.connect_patience_s)
            building = ContextBuilding(retrieval, counter, settings.default_max_tokens)
            servicer = ContextServicer(library, retrieval, building)
            add_to = partial(pb_grpc.add_ContextServiceServicer_to_server, servicer)
            yield [
                Registration(
                    SERVICE_NAME,
                    add_to,
                    SCOPES,
                    guard_of("context", settings),
                    why_not_ready=store.why_not_ready,
                )
            ]


PROGRAM = Program("context", ContextSettings, open_app)

if __name__ == "__main__":
    PROGRAM.run()
