"""What embedding and scoring pairs have in common: sequences of tokens, of which a model computes a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.pooling.embedder_loop import EmbedderLoop
from services.inference.app.preparing.preparation import Preparation
from services.inference.app.workload import Load
from services.inference.core.embedding import MAX_TEXTS, Vectors


class PooledWork:
    """A model that pools sequences of tokens, which it owns; a Workload."""

    def __init__(self, loop: EmbedderLoop) -> None:
        self.embedder = loop.embedder
        self.preparation = Preparation(self.embedder, window_tokens=self.embedder.model.context_window)
        self._loop = loop

    @property
    def broken_because(self) -> str:
        """Why the model serves no more requests; empty while it works."""
        return self._loop.broken_because

    def load(self) -> Load:
        """Return how busy the model is; each text counts as a sequence."""
        loop = self._loop
        return Load(
            queued_requests=loop.queue.waiting,
            queue_capacity=loop.queue_capacity,
            running_sequences=loop.running_texts,
            sequence_capacity=self.embedder.max_batch_texts,
            computed_tokens_total=loop.computed_tokens_total,
        )

    def stuck_for_s(self, now_s: float) -> float:
        """Return the age of the current batch; 0 when none is computed."""
        return self._loop.stuck_for_s(now_s)

    def give_up(self, reason: str) -> None:
        """Fail every request and refuse new ones: the thread is stuck."""
        self._loop.give_up(reason)

    async def close(self) -> None:
        """Fail the waiting requests, finish the current batch, end the threads and free the model."""
        await self._loop.close()
        await self.preparation.close()
        self.embedder.close()

    def _check(self, texts: Sequence[str]) -> None:
        """Raise InvalidRequest for no text or more than 256, and Overloaded when too many requests wait."""
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest(f"{len(texts)} texts: there must be 1 to {MAX_TEXTS}")
        self._loop.check_capacity()

    async def _pool(self, tokenize: Callable[[], Sequence[Sequence[int]]]) -> tuple[Vectors, TokenUsage]:
        """Return a row for each sequence that `tokenize` returns, in order, and the usage."""
        sequences = await self.preparation.run(tokenize)
        self._loop.check_capacity()
        usage = TokenUsage(
            prompt_tokens=sum(map(len, sequences)),
            context_tokens=max(map(len, sequences)),
            context_window=self.embedder.model.context_window,
        )
        return await self._loop.embed(sequences), usage
