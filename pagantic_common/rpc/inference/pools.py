"""The inference services that serve the models of a system, keyed by alias."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc

from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.rpc.peer import Credentials, Peer, pass_on
from pagantic_common.settings import CallerSettings


@dataclass(frozen=True, slots=True)
class InferencePool:
    """An inference service: its stub, and the peer that makes the calls."""

    stub: pb_grpc.InferenceServiceAsyncStub
    peer: Peer


class InferencePools:
    """The inference service of each model.

    Args:
        default: The channel for the empty alias and for every alias that `by_alias` lacks.
        by_alias: The channels for other aliases. Aliases with the same channel share a peer.
        patience_s: Maximum wait of a call for a starting service, in seconds.
        credentials: Returns the `authorization` of a call.
    """

    def __init__(
        self,
        default: grpc.aio.Channel,
        by_alias: Mapping[str, grpc.aio.Channel],
        patience_s: float,
        credentials: Credentials = pass_on,
    ) -> None:
        self._channels = (default, by_alias)
        self._patience_s = patience_s
        channels = {id(channel): channel for channel in (default, *by_alias.values())}
        pools = {
            key: InferencePool(
                pb_grpc.InferenceServiceStub(channel),
                Peer("inference", channel, patience_s=patience_s, credentials=credentials),
            )
            for key, channel in channels.items()
        }
        self._default = pools[id(default)]
        self._by_alias = {alias: pools[id(channel)] for alias, channel in by_alias.items()}

    def of(self, alias: str) -> InferencePool:
        """Return the service for a model."""
        return self._by_alias.get(alias, self._default)

    def with_credentials(self, credentials: Credentials) -> InferencePools:
        """Return pools with the same channels, whose calls carry these credentials."""
        return InferencePools(*self._channels, self._patience_s, credentials)


@asynccontextmanager
async def open_pools(settings: CallerSettings) -> AsyncIterator[InferencePools]:
    """Open a channel to each inference service that the settings name.

    Raises InvalidRequest if the certificates are unusable.
    """
    async with AsyncExitStack() as stack:
        channels = {
            address: await stack.enter_async_context(open_service_channel(address, settings))
            for address in dict.fromkeys((settings.inference_address, *settings.model_pools.values()))
        }
        by_alias = {alias: channels[address] for alias, address in settings.model_pools.items()}
        yield InferencePools(channels[settings.inference_address], by_alias, settings.connect_patience_s)
