"""The use-case behind Embed: turns texts into vectors; the texts of several requests share batches."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.pooling.pooled_work import PooledWork
from services.inference.core.embedding import Vectors, unit_vectors


class Embedding(PooledWork):
    """Embed over one model, which it owns; a Workload."""

    async def embed(self, texts: Sequence[str]) -> tuple[Vectors, TokenUsage]:
        """Return a vector of unit length per text, in order, and the usage.

        Raises InvalidRequest for no text or more than 256, for a text without tokens, and (INFERENCE_CONTEXT_EXCEEDED)
        for a text longer than the model's window; Overloaded (INFERENCE_OVERLOADED) when too many requests wait.
        """
        self._check(texts)
        for position, text in enumerate(texts):
            self.preparation.check_text(f"texts[{position}]", text)
        vectors, usage = await self._pool(lambda: self._tokenize(texts))
        return unit_vectors(vectors), usage

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
