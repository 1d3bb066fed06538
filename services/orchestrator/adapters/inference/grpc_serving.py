"""Implements ServingPort over gRPC: asks each replica separately if the orchestrator knows the replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from pagantic_common.codec.messages import model_info_from_proto
from pagantic_common.domain.errors import PaganticError
from pagantic_common.rpc.peer import Credentials, Peer
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.app.failures import error_from
from services.orchestrator.ports.serving import ReplicaChange, ReplicaLoad, ReplicaReport, ServedModel

ANSWER_S = 3.0
CHANGE_S = 600.0  # Loading a large model takes a long time.


@dataclass(frozen=True, slots=True)
class InferenceService:
    """An inference service with its address, channel and replicas. If `replicas` is None, gRPC chooses a replica."""

    address: str
    channel: grpc.aio.Channel
    replicas: ReplicaSet | None = None


class _Reached:
    """A replica that can be called, or a whole service if its replicas are unknown."""

    def __init__(self, address: str, peer: Peer, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.peer = peer
        self.stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(channel)


class GrpcServing:
    """Client of all inference services.

    Args:
        services: The services, the default service first.
        pools: Service addresses by alias; other aliases use the default service.
        credentials: Returns the `authorization` of a call.
    """

    def __init__(
        self, services: Sequence[InferenceService], pools: Mapping[str, str], credentials: Credentials
    ) -> None:
        self._services = {service.address: service for service in services}
        self._default = services[0].address
        self._pools = pools
        self._peers = {
            service.address: Peer("inference", service.channel, patience_s=0.0, credentials=credentials)
            for service in services
        }

    async def list_replicas(self) -> Sequence[ReplicaReport]:
        """Return the reports of all replicas, which are queried concurrently."""
        requests = [
            self._report_of(address, reached) for address in self._services for reached in self._replicas_of(address)
        ]
        return await asyncio.gather(*requests)

    async def load_model(self, model: str) -> Sequence[ReplicaChange]:
        """Load a model in each replica of the model's service."""

        async def load(reached: _Reached) -> bool:
            await reached.peer.call_unary(reached.stub.LoadModel, pb.LoadModelRequest(model=model), CHANGE_S)
            return False

        replicas = self._replicas_of(self._address_of(model))
        return await asyncio.gather(*(_changed(reached.address, load(reached)) for reached in replicas))

    async def unload_model(self, model: str) -> Sequence[ReplicaChange]:
        """Unload a model in each replica of the model's service."""

        async def unload(reached: _Reached) -> bool:
            request = pb.UnloadModelRequest(model=model)
            return (await reached.peer.call_unary(reached.stub.UnloadModel, request, CHANGE_S)).was_loaded

        replicas = self._replicas_of(self._address_of(model))
        return await asyncio.gather(*(_changed(reached.address, unload(reached)) for reached in replicas))

    def _address_of(self, model: str) -> str:
        return self._pools.get(model, self._default)

    def _replicas_of(self, address: str) -> list[_Reached]:
        service = self._services[address]
        replicas = service.replicas.all if service.replicas is not None else []
        if not replicas:  # The list is also empty before the first look-up.
            return [_Reached(address, self._peers[address], service.channel)]
        return [_Reached(replica.address, replica.peer, replica.channel) for replica in replicas]

    async def _report_of(self, service: str, reached: _Reached) -> ReplicaReport:
        try:
            load, listed = await asyncio.gather(
                reached.peer.call_unary(reached.stub.GetLoad, pb.GetLoadRequest(), ANSWER_S),
                reached.peer.call_unary(reached.stub.ListModels, pb.ListModelsRequest(), ANSWER_S),
            )
        except PaganticError as error:
            return ReplicaReport(service, reached.address, error=error_from(error))
        models = [model for model in _models_from_proto(listed) if self._address_of(model.info.name) == service]
        return ReplicaReport(service, reached.address, _load_from_proto(load), tuple(models))


async def _changed(address: str, change: Coroutine[Any, Any, bool]) -> ReplicaChange:
    try:
        return ReplicaChange(address, await change)
    except PaganticError as error:
        return ReplicaChange(address, error=error_from(error))


def _models_from_proto(listed: pb.ListModelsResponse) -> list[ServedModel]:
    """Decode the models. The states stay at their defaults if an earlier version of the service omits them."""
    states = [*listed.states, *[pb.ModelState()] * (len(listed.models) - len(listed.states))]
    return [
        ServedModel(model_info_from_proto(info), state.is_loaded, state.memory_bytes, state.running)
        for info, state in zip(listed.models, states, strict=False)
    ]


def _load_from_proto(load: pb.GetLoadResponse) -> ReplicaLoad:
    return ReplicaLoad(
        queued=load.queued_requests,
        queue_capacity=load.queue_capacity,
        running=load.running_sequences,
        sequence_capacity=load.sequence_capacity,
        kv_used_tokens=load.kv_used_tokens,
        kv_capacity_tokens=load.kv_capacity_tokens,
        output_tokens_total=load.output_tokens_total,
        pending_prompt_tokens=load.pending_prompt_tokens,
    )
