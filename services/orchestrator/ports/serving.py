"""The replicas of the inference services, as seen by operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import ModelInfo


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The total load of a replica by all its callers. A capacity of 0 means that the capacity is unknown."""

    queued: int = 0
    queue_capacity: int = 0
    running: int = 0
    sequence_capacity: int = 0
    kv_used_tokens: int = 0
    kv_capacity_tokens: int = 0
    output_tokens_total: int = 0
    pending_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of a replica: whether it is in memory, its size there, and the number of requests that use it."""

    info: ModelInfo
    is_loaded: bool = False
    memory_bytes: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica's report, or the error if the replica does not answer."""

    service: str
    address: str
    load: ReplicaLoad | None = None
    models: tuple[ServedModel, ...] = ()
    error: PaganticError | None = None


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """The result of a change to a replica.

    `was_loaded` is set if the model was already loaded. `error` is the reason that the change failed.
    """

    address: str
    was_loaded: bool = False
    error: PaganticError | None = None


class ServingPort(Protocol):
    """The inference services. If a replica fails, the result contains its error.

    An empty alias selects the default model.
    """

    async def list_replicas(self) -> Sequence[ReplicaReport]:
        """Return every replica, beginning with the replicas of the default service."""

    async def load_model(self, model: str) -> Sequence[ReplicaChange]:
        """Load a model in each replica of its service. The result has at least one entry."""

    async def unload_model(self, model: str) -> Sequence[ReplicaChange]:
        """Unload a model in each replica of its service. The result has at least one entry."""
