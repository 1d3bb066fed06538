"""Defines the protocols of running models that generate text, compute embeddings or score pairs, and their load."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol, runtime_checkable

from pagantic_common.domain.usage import TokenUsage
from services.inference.core.embedding import Vectors
from services.inference.core.generation import ChatPrompt, Event, InferenceRequest


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one or more models. Loads can be added."""

    queued_requests: int = 0
    queue_capacity: int = 0
    running_sequences: int = 0
    sequence_capacity: int = 0
    kv_used_tokens: int = 0
    kv_capacity_tokens: int = 0
    output_tokens_total: int = 0
    computed_tokens_total: int = 0
    preemptions_total: int = 0
    pending_prompt_tokens: int = 0
    queued_prompt_tokens: int = 0
    refused_total: int = 0
    parked_bytes: int = 0
    looked_up_tokens_total: int = 0
    looked_up_accepted_total: int = 0
    guessed_tokens_total: int = 0
    guessed_accepted_total: int = 0

    @property
    def kv_used_ratio(self) -> float:
        """The fraction of the KV cache's cells in use, from 0 to 1; 0 if there is no cache."""
        return self.kv_used_tokens / max(1, self.kv_capacity_tokens)

    def __add__(self, other: Load) -> Load:
        return Load(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class TextPreparation(Protocol):
    """Tokenizes texts and counts tokens for a model. Counts are estimates if only another engine has the tokenizer."""

    @property
    def is_estimate(self) -> bool:
        """Whether counts are estimates."""

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""

    async def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of tokens."""


class Workload(Protocol):
    """A model that serves the requests of all callers."""

    @property
    def preparation(self) -> TextPreparation:
        """The preparation of texts for this model."""

    @property
    def broken_because(self) -> str:
        """The reason why the model no longer serves requests, or an empty string while it works."""

    def load(self) -> Load:
        """Return the load of the model."""

    def stuck_for_s(self, now_s: float) -> float:
        """Return the age of the current step in seconds, or 0 if no step is running."""

    def give_up(self, reason: str) -> None:
        """Fail all requests and reject new requests, because the thread is stuck or dead."""

    async def close(self) -> None:
        """Fail the remaining requests, end the threads and free the model."""


@runtime_checkable
class TextWorkload(Workload, Protocol):
    """A model that generates text, local or remote."""

    def infer(self, request: InferenceRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of one request. Closing the generator stops the work for the request."""

    async def count_chat(self, prompt: ChatPrompt) -> int:
        """Return the number of tokens of a rendered conversation."""

    def runs(self, inference_id: str) -> bool:
        """Return whether an inference runs here."""

    def cancel_candidates(self, inference_id: str, indexes: Sequence[int]) -> None:
        """Cancel candidates of an inference that runs here. Raises InvalidRequest if an index has no candidate."""


@runtime_checkable
class EmbeddingWorkload(Workload, Protocol):
    """A model that computes embeddings, local or remote."""

    async def embed(self, texts: Sequence[str]) -> tuple[Vectors, TokenUsage]:
        """Return one vector of unit length per text, in order, and the usage."""
