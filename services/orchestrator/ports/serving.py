"""The replicas of the inference services, as their operators see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import ModelInfo


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of a replica for all its callers; a capacity of 0 is unknown."""

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
    """A model of a replica: whether it is in memory, the bytes that it takes there, and the requests that use it."""

    info: ModelInfo
    is_loaded: bool = False
    memory_bytes: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica's report, or the error if it does not answer."""

    service: str
    address: str
    load: ReplicaLoad | None = None
    models: tuple[ServedModel, ...] = ()
    error: PaganticError | None = None


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """The result of a change in a replica: whether the model was loaded before, or why it was not changed."""

    address: str
    was_loaded: bool = False
    error: PaganticError | None = None


class ServingPort(Protocol):
    """The inference services; a replica that fails has its error in the result. An empty alias is the default model."""

    async def list_replicas(self) -> Sequence[ReplicaReport]:
        """Return every replica, those of the default service first."""

    async def load_model(self, model: str) -> Sequence[ReplicaChange]:
        """Load a model in each replica of its service; the result has at least one entry."""

    async def unload_model(self, model: str) -> Sequence[ReplicaChange]:
        """Unload a model in each replica of its service; the result has at least one entry."""
