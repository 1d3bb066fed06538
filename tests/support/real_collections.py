"""A real context service in this process, which the orchestrator's port passes calls on to."""

from contextlib import asynccontextmanager

from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.peer import pass_on
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.server import serving
from services.context.__main__ import open_app
from services.context.settings import ContextSettings
from services.orchestrator.adapters.context_proxy import SCOPES, SERVICE_NAME, ContextProxy
from services.orchestrator.adapters.grpc_context import GrpcContext
from services.orchestrator.app.access.audit import Audit
from services.orchestrator.app.running.registry import Registry


class RealCollections:
    """The service as the orchestrator's port shows it, and as its executions use it."""

    def __init__(self, channel):
        self.port = GrpcContext(channel, channel, 5.0)
        audit, registry = Audit(None, SystemClock(), is_on=False), Registry(64, 1 << 20)
        self._proxy = ContextProxy(channel, audit, None, 5.0, credentials=pass_on, registry=registry)

    def registration(self):
        return Registration(SERVICE_NAME, self._proxy.add_to, SCOPES)


@asynccontextmanager
async def real_collections(path, **fields):
    """Run the service with its data in this folder; it embeds nothing and counts no tokens, so it needs no model."""
    settings = ContextSettings(
        port=0, data_folder=path / "context", embedding_model="", default_max_tokens=0, workers=1, **fields
    )
    async with open_app(settings) as registrations, serving(registrations) as (channel, _):
        yield RealCollections(channel)
