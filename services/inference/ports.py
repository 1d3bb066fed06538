"""What the app needs from an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pagantic_common.domain.messages import ModelInfo
from services.inference.core.generation import Constraint
from services.inference.core.sampling import Logits
from services.inference.core.sequence import Matcher, Vocabulary


class TextEngine(Protocol):
    """A loaded model and one sequence of its KV cache. `decode` and `truncate` are called from one thread at a time."""

    @property
    def model(self) -> ModelInfo:
        """The model's description."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens of one `decode`."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of tokens."""

    def decode(self, tokens: Sequence[int], position: int) -> Logits:
        """Append tokens at `position`, which is the sequence's length, and return a copy of the last one's logits.

        Raises Internal (INFERENCE_ENGINE_ERROR) when the engine fails; the sequence is then as before.
        """

    def truncate(self, length: int) -> None:
        """Forget everything of the sequence from position `length` on."""


class ChatTemplate(Protocol):
    """The model's own way to write a conversation."""

    @property
    def knows_tools(self) -> bool:
        """Whether the template renders tools."""

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        """Render a conversation up to where the assistant speaks; raises InvalidRequest when the template refuses."""


class ConstraintCompiler(Protocol):
    """Turns constraints into matchers over the model's tokens."""

    def start(self, constraint: Constraint) -> Matcher:
        """Return a fresh matcher. Raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID) with the reason it cannot be."""
