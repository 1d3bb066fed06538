"""Counts for models whose tokenizer is elsewhere: estimates, and clear refusals of everything else."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from services.inference.core.remote.estimate import estimate_text


class EstimatingPreparation:
    """A TextPreparation without a tokenizer."""

    is_estimate = True

    def __init__(self, model: str) -> None:
        self._model = model

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Raise InvalidRequest (CONFIG_NO_ENGINE)."""
        raise self._refusal(add_special, parse_special, text)

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the estimated tokens of each text."""
        return [estimate_text(text) for text in texts]

    async def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Raise InvalidRequest (CONFIG_NO_ENGINE)."""
        raise self._refusal(tokens, with_special)

    def _refusal(self, *_unused: object) -> InvalidRequest:
        return InvalidRequest(
            f"the tokenizer of model {self._model!r} is in another engine: use CountTokens, which estimates, or a "
            "model that this service decodes itself",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
