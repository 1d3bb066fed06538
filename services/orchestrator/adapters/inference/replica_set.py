"""Tracks the replicas of the inference service through their channels and their reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import aclosing
from datetime import timedelta
from typing import Self

import grpc

from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.domain.errors import Overloaded, PaganticError, Unsupported
from pagantic_common.rpc.peer import Credentials, Peer
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.adapters.inference.addresses import ServiceAddress
from services.orchestrator.core.routing.prefixes import PromptPrefixes
from services.orchestrator.core.routing.replicas import Call, Load, Replicas

RESOLVE_S = 2.0
RESOLVE_TIMEOUT_S = 5.0
INTERVAL_S = 0.25
REWATCH_S = 1.0
RETRY_MUTE_S = 30.0
LEAVE_S = 3600.0  # maximum time that running calls keep a removed replica's channel open

log = get_logger(__name__)


class Replica:
    """A replica with its channel and its latest status."""

    def __init__(self, address: str, channel: grpc.aio.Channel, credentials: Credentials) -> None:
        self.address = address
        self.channel = channel
        self.stub: inference_service_pb2_grpc.InferenceServiceAsyncStub = (
            inference_service_pb2_grpc.InferenceServiceStub(channel)
        )
        # A rejected call goes to another replica at once instead of waiting for this replica.
        self.peer = Peer("inference", channel, patience_s=0.0, credentials=credentials)
        self.watch: asyncio.Task[None] | None = None
        self.is_away = True  # No report has arrived yet.
        self.is_leaving = False  # set once the replica announces its end


class ReplicaSet:
    """All replicas of the service. The set must be opened before use, and used from a single event loop.

    Args:
        address: The address of the replicas.
        open_channel: Opens a channel to a replica's address.
        credentials: Returns the `authorization` of a call.
        secret: Keys the names of prompt prefixes; must be the same in all orchestrators.
        interval_s: Time between two reports of a replica.
    """

    def __init__(
        self,
        address: ServiceAddress,
        open_channel: Callable[[str], grpc.aio.Channel],
        credentials: Credentials,
        secret: bytes,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.secret = secret
        self._interval_s = interval_s
        self._address = address
        self._open_channel = open_channel
        self._credentials = credentials
        self._known = Replicas()
        self._replicas: dict[str, Replica] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._resolving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._resolving = asyncio.create_task(self._keep_resolving())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._resolving is not None:
            self._resolving.cancel()
        for replica in self._replicas.values():
            self._leave(replica)
        leaving = list(self._leaving)
        for closing in leaving:
            closing.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    @property
    def all(self) -> list[Replica]:
        """The replicas, sorted by address."""
        return [self._replicas[address] for address in sorted(self._replicas)]

    @property
    def has_choice(self) -> bool:
        """Whether there are two or more replicas."""
        return len(self._replicas) > 1

    def choose(self, prefixes: PromptPrefixes, avoided: Collection[str]) -> tuple[Replica, Call] | None:
        """Return a replica, and a call that the caller must pass to `end`.

        Returns None if every replica is avoided or unreachable.
        """
        away = {address for address, replica in self._replicas.items() if replica.is_away}
        call = self._known.choose(prefixes, time.monotonic(), away.union(avoided))
        if call is None:
            return None
        return self._replicas[call.replica], call

    def start(self, call: Call, started: inference_service_pb2.InferenceStarted) -> None:
        """Record that the prompt of a call was computed."""
        self._known.start(call, started.prompt_tokens, started.cached_prompt_tokens, time.monotonic())

    def end(self, call: Call) -> None:
        """Record that a call has ended, whether it succeeded or failed."""
        self._known.end(call, time.monotonic())

    async def _keep_resolving(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                    addresses = await self._address.resolve()
            except (OSError, TimeoutError) as error:
                log.debug("the replicas could not be resolved", host=self._address.host, error=str(error))
            else:
                self._take(addresses)
            await asyncio.sleep(RESOLVE_S)

    def _take(self, addresses: Collection[str]) -> None:
        """Start to watch new replicas, and drop removed replicas."""
        self._known.resolve(addresses)
        for address in sorted(self._replicas.keys() - addresses):
            self._leave(self._replicas.pop(address))
        for address in addresses:
            if address not in self._replicas:
                replica = Replica(address, self._open_channel(address), self._credentials)
                replica.watch = asyncio.create_task(self._keep_watching(replica))
                self._replicas[address] = replica
                log.info("a replica of the inference service is watched", address=address)

    def _leave(self, replica: Replica) -> None:
        """Stop watching a replica, but let its running calls finish."""
        replica.is_leaving = True
        if replica.watch is not None:
            replica.watch.cancel()
        leaving = asyncio.create_task(replica.channel.close(LEAVE_S))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        log.info("a replica of the inference service is gone", address=replica.address)

    async def _keep_watching(self, replica: Replica) -> None:
        while True:
            wait_s = REWATCH_S
            try:
                await self._watch(replica)
            except (Unsupported, Overloaded):
                self._known.note_mute(replica.address)
                replica.is_away = False
                wait_s = RETRY_MUTE_S
            except PaganticError as error:
                replica.is_away = True
                log.debug("a replica does not answer", address=replica.address, error=str(error))
            else:
                # A replica ends its stream of load reports only when it stops.
                replica.is_away = replica.is_leaving = True
            await asyncio.sleep(wait_s)

    async def _watch(self, replica: Replica) -> None:
        """Process the reports of a replica until they end."""
        is_first = True
        request = inference_service_pb2.WatchReplicaRequest()
        request.interval.FromTimedelta(timedelta(seconds=self._interval_s))
        async with aclosing(replica.peer.call_stream(replica.stub.WatchReplica, request)) as reports:
            async for report in reports:
                replica.is_away = replica.is_leaving = False
                self._known.note_load(replica.address, _load_from_proto(report.load), time.monotonic())
                self._known.note_keys(replica.address, report.added_keys, report.removed_keys, is_first=is_first)
                is_first = False


def _load_from_proto(load: inference_service_pb2.GetLoadResponse) -> Load:
    return Load(load.pending_prompt_tokens, load.running_sequences, load.queued_requests, load.sequence_capacity)
