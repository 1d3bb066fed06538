"""The use-case behind Embed: turns texts into vectors; the texts of several requests share batches."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.embedder_loop import EmbedderLoop
from services.inference.app.preparation import Preparation
from services.inference.app.workload import Load
from services.inference.core.embedding import MAX_TEXTS, Vectors, unit_vectors


class Embedding:
    """Embed over one model, which it owns; a Workload."""

    def __init__(self, loop: EmbedderLoop) -> None:
        self.embedder = loop.embedder
        self.preparation = Preparation(self.embedder, window_tokens=self.embedder.model.context_window)
        self._loop = loop

    @property
    def broken_because(self) -> str:
        """Why the model serves no more requests; empty while it works."""
        return self._loop.broken_because

    async def embed(self, texts: Sequence[str]) -> tuple[Vectors, TokenUsage]:
        """Return a vector of unit length per text, in order, and the usage.

        Raises InvalidRequest for no text or more than 256, for a text without tokens, and (INFERENCE_CONTEXT_EXCEEDED)
        for a text longer than the model's window; Overloaded (INFERENCE_OVERLOADED) when too many requests wait.
        """
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest(f"{len(texts)} texts: there must be 1 to {MAX_TEXTS}")
        self._loop.check_capacity()
        for position, text in enumerate(texts):
            self.preparation.check_text(f"texts[{position}]", text)
        tokens = await self.preparation.run(self._tokenize, texts)
        self._loop.check_capacity()
        usage = TokenUsage(
            prompt_tokens=sum(map(len, tokens)),
            context_tokens=max(map(len, tokens)),
            context_window=self.embedder.model.context_window,
        )
        return unit_vectors(await self._loop.embed(tokens)), usage

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

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        window, name = self.embedder.model.context_window, self.embedder.model.name
        tokenized = []
        for position, text in enumerate(texts):
            tokens = self.embedder.tokenize(text, add_special=True, parse_special=False)
            if not tokens:
                raise InvalidRequest(f"texts[{position}] has no tokens, and model {name!r} adds none")
            if len(tokens) > window:
                raise InvalidRequest(
                    f"texts[{position}] has {len(tokens)} tokens, the context window of model {name!r} {window}: "
                    "shorten or split it",
                    code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
                    details={"text_index": position, "prompt_tokens": len(tokens), "context_window": window},
                )
            tokenized.append(tokens)
        return tokenized
