"""Runs the rerank service: `python -m services.rerank`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from pagantic.rerank.v1 import rerank_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.server import Registration, run_service
from pagantic_common.settings import load_settings
from services.rerank.servicer import RerankServicer
from services.rerank.settings import RerankSettings


@asynccontextmanager
async def open_app(_settings: RerankSettings) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service."""
    add_to = partial(pb_grpc.add_RerankServiceServicer_to_server, RerankServicer())
    yield [Registration("pagantic.rerank.v1.RerankService", add_to)]


def main() -> None:
    """Run until told to stop."""
    settings = load_settings(RerankSettings)
    run_service("rerank", settings, partial(open_app, settings))


if __name__ == "__main__":
    main()
