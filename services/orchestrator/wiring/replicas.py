"""Opens the replicas of the inference service, where the orchestrator chooses among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from pagantic_common.rpc.access.tls.certificates import read_certificates
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from services.orchestrator.adapters.access.key_files import prefix_secret, tenant_credentials
from services.orchestrator.adapters.inference.addresses import parse_address
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.settings import OrchestratorSettings, Routing


@asynccontextmanager
async def open_replicas(settings: OrchestratorSettings) -> AsyncIterator[ReplicaSet | None]:
    """Yield the replicas; None where the address names one, or the settings leave the choice to gRPC.

    Raises InvalidRequest for certificates that cannot be used.
    """
    address = parse_address(settings.inference_address)
    if address is None or settings.inference_routing is Routing.ROUND_ROBIN:
        yield None
        return
    open_one = partial(
        open_service_channel, settings=settings, replica_of=address.host, certificates=read_certificates(settings)
    )
    credentials = tenant_credentials(settings.signing_key_file)
    async with ReplicaSet(address, open_one, credentials, prefix_secret(settings.signing_key_file)) as replicas:
        yield replicas
