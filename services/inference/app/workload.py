"""A loaded model at work, whether it generates text, makes embeddings or scores pairs, and its load."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Protocol

from services.inference.app.preparation import Preparation


@dataclass(frozen=True, slots=True)
class Load:
    """How busy one or more models are; loads add up."""

    queued_requests: int = 0
    queue_capacity: int = 0
    running_sequences: int = 0
    sequence_capacity: int = 0
    kv_used_tokens: int = 0
    kv_capacity_tokens: int = 0
    output_tokens_total: int = 0
    computed_tokens_total: int = 0
    preemptions_total: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class Workload(Protocol):
    """A loaded model, whose thread computes the requests of all callers."""

    @property
    def preparation(self) -> Preparation:
        """The threads that tokenize for this model."""

    @property
    def broken_because(self) -> str:
        """Why the model serves no more requests; empty while it works."""

    def load(self) -> Load:
        """Return how busy the model is."""

    def stuck_for_s(self, now_s: float) -> float:
        """Return the age of the current step; 0 when none is running."""

    def give_up(self, reason: str) -> None:
        """Fail every request and refuse new ones: the thread is stuck or dead."""

    async def close(self) -> None:
        """Fail the remaining requests, end the threads and free the model."""
