"""Opens the inference services, and each service's replicas if the orchestrator chooses among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc

from pagantic_common.rpc.access.tls.certificates import read_certificates
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.rpc.peer import Credentials
from services.orchestrator.adapters.access.key_files import prefix_secret, tenant_credentials
from services.orchestrator.adapters.inference.addresses import parse_address
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.adapters.inference.grpc_serving import GrpcServing, InferenceService
from services.orchestrator.adapters.inference.pooled_inference import PooledInference
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.ports.services import InferencePort
from services.orchestrator.ports.serving import ServingPort
from services.orchestrator.settings import OrchestratorSettings, Routing


@dataclass(frozen=True, slots=True)
class OpenedInference:
    """The inference services, as seen by executions and as seen by operators."""

    port: InferencePort
    serving: ServingPort


@asynccontextmanager
async def open_inference(settings: OrchestratorSettings, default: grpc.aio.Channel) -> AsyncIterator[OpenedInference]:
    """Yield the inference service behind its open channel, combined with the configured pools.

    Raises InvalidRequest if the certificates cannot be used.
    """
    certificates = read_certificates(settings)
    credentials = tenant_credentials(settings.signing_key_file)
    async with AsyncExitStack() as stack:
        services = {
            settings.inference_address: await _open_service(stack, settings, settings.inference_address, default)
        }
        for address in settings.model_pools.values():
            if address not in services:
                channel = await stack.enter_async_context(
                    open_service_channel(address, settings, waits=["Infer"], certificates=certificates)
                )
                services[address] = await _open_service(stack, settings, address, channel)
        ports = {address: _port_of(service, settings, credentials) for address, service in services.items()}
        port: InferencePort = ports[settings.inference_address]
        if settings.model_pools:
            port = PooledInference(port, {alias: ports[address] for alias, address in settings.model_pools.items()})
        yield OpenedInference(port, GrpcServing(list(services.values()), settings.model_pools, credentials))


async def _open_service(
    stack: AsyncExitStack, settings: OrchestratorSettings, address: str, channel: grpc.aio.Channel
) -> InferenceService:
    return InferenceService(address, channel, await stack.enter_async_context(_open_replicas(settings, address)))


def _port_of(service: InferenceService, settings: OrchestratorSettings, credentials: Credentials) -> GrpcInference:
    return GrpcInference(
        service.channel,
        settings.connect_patience_s,
        settings.busy_patience_s,
        credentials,
        service.replicas,
        max_answer_bytes=settings.max_answer_bytes,
    )


@asynccontextmanager
async def _open_replicas(settings: OrchestratorSettings, address: str) -> AsyncIterator[ReplicaSet | None]:
    """Yield the replicas; None if the address names a single replica or gRPC chooses the replica."""
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
