"""Opens the inference services, and the replicas of each where the orchestrator chooses among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc

from pagantic_common.rpc.access.tls.certificates import read_certificates
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from services.orchestrator.adapters.access.key_files import prefix_secret, tenant_credentials
from services.orchestrator.adapters.inference.addresses import parse_address
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.adapters.inference.pooled_inference import PooledInference
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.ports.services import InferencePort
from services.orchestrator.settings import OrchestratorSettings, Routing


@asynccontextmanager
async def open_inference(settings: OrchestratorSettings, default: grpc.aio.Channel) -> AsyncIterator[InferencePort]:
    """Yield the inference service behind its open channel, together with the pools of the settings.

    Raises InvalidRequest for certificates that cannot be used.
    """
    certificates = read_certificates(settings)
    async with AsyncExitStack() as stack:
        service = await _open_service(stack, settings, settings.inference_address, default)
        opened = {settings.inference_address: service}
        for address in settings.model_pools.values():
            if address not in opened:
                channel = await stack.enter_async_context(
                    open_service_channel(address, settings, waits=["Infer"], certificates=certificates)
                )
                opened[address] = await _open_service(stack, settings, address, channel)
        pools = {alias: opened[address] for alias, address in settings.model_pools.items()}
        yield PooledInference(service, pools) if pools else service


async def _open_service(
    stack: AsyncExitStack, settings: OrchestratorSettings, address: str, channel: grpc.aio.Channel
) -> GrpcInference:
    replicas = await stack.enter_async_context(_open_replicas(settings, address))
    credentials = tenant_credentials(settings.signing_key_file)
    return GrpcInference(channel, settings.connect_patience_s, settings.busy_patience_s, credentials, replicas)


@asynccontextmanager
async def _open_replicas(settings: OrchestratorSettings, address: str) -> AsyncIterator[ReplicaSet | None]:
    """Yield the replicas; None where the address names one, or the settings leave the choice to gRPC."""
    where = parse_address(address)
    if where is None or settings.inference_routing is Routing.ROUND_ROBIN:
        yield None
        return
    open_one = partial(
        open_service_channel, settings=settings, replica_of=where.host, certificates=read_certificates(settings)
    )
    credentials = tenant_credentials(settings.signing_key_file)
    async with ReplicaSet(where, open_one, credentials, prefix_secret(settings.signing_key_file)) as replicas:
        yield replicas
