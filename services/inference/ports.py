"""What the app needs from an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from pagantic_common.domain.messages import ModelInfo
from services.inference.core.decoding.output import Matcher, Vocabulary
from services.inference.core.decoding.sampling import Logits
from services.inference.core.embedding import Vectors
from services.inference.core.generation import Constraint
from services.inference.core.scheduling.batch import Slice
from services.inference.core.tuning import Round, Tuning


class KvCacheFullError(Exception):
    """The cache has no room for a batch, and nothing of it was computed."""


class MeasuringFailed(Exception):
    """How the engine runs best could not be measured; the message says why."""


class Prober(Protocol):
    """Measures how the engine runs, beside the engine that serves."""

    async def why_not(self) -> str:
        """Return why measuring would be in vain now; empty when it would not."""

    def rounds(self) -> AsyncGenerator[Round, None]:
        """Yield rounds until closed, which ends the measuring at once. Raises MeasuringFailed."""


class TuningStore(Protocol):
    """Keeps what was measured for the next start."""

    def save(self, tuning: Tuning | None) -> str:
        """Keep a tuning, or that there is none; returns why that cannot be, empty when it was kept."""


class Tokenizer(Protocol):
    """Text to a model's tokens and back; may be called from any thread."""

    @property
    def longest_token_bytes(self) -> int:
        """Most bytes of text that become one token."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of tokens."""


class TextEngine(Tokenizer, Protocol):
    """A loaded model and the sequences of its KV cache.

    Only one thread calls `decode` and what changes sequences; the tokenizer may be called from any.
    """

    @property
    def model(self) -> ModelInfo:
        """The model's description."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens of one `decode`."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Cells of the KV cache; sequences that share tokens share their cells."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of one cell."""

    @property
    def max_sequences(self) -> int:
        """Sequence ids are below this."""

    def decode(self, slices: Sequence[Slice]) -> Logits:
        """Append each slice to its sequence and return the rows of logits that they ask for, in order.

        The rows, of shape (rows, vocabulary), are the caller's until the next `decode`. Raises KvCacheFullError, and
        Internal (INFERENCE_ENGINE_ERROR) when the engine fails; the sequences are then as before.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let `target`, which is empty or holds the same tokens, share the first `length` tokens of `source`."""

    def truncate(self, sequence_id: int, length: int) -> None:
        """Forget everything of a sequence from position `length` on."""

    def park(self, sequence_id: int, key: int) -> None:
        """Copy what a sequence holds to host memory, under a new key."""

    def unpark(self, key: int, sequence_id: int, length: int) -> None:
        """Give a sequence, which is empty, the first `length` tokens of what was parked; all of it needs room.

        Raises Internal (INFERENCE_ENGINE_ERROR) when the engine fails.
        """

    def drop(self, key: int) -> None:
        """Forget what was parked."""

    def close(self) -> None:
        """Free the model. Nothing may be called afterwards."""


class TextEmbedder(Tokenizer, Protocol):
    """A loaded model that turns texts into vectors. Only one thread at a time calls `embed`."""

    @property
    def model(self) -> ModelInfo:
        """The model's description."""

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens of several texts in one `embed`; one text alone may have the context window."""

    @property
    def max_batch_texts(self) -> int:
        """Most texts of one `embed`."""

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return a vector per text, in order, of any length; each text has at least one token.

        The vectors are the caller's. Raises Internal (INFERENCE_ENGINE_ERROR) when the engine fails.
        """

    def close(self) -> None:
        """Free the model. Nothing may be called afterwards."""


class ChatTemplate(Protocol):
    """The model's own way to write a conversation."""

    @property
    def source(self) -> str:
        """The template's text."""

    @property
    def knows_tools(self) -> bool:
        """Whether the template renders tools."""

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, thinks: bool | None = None
    ) -> str:
        """Render a conversation up to where the assistant speaks; raises InvalidRequest when the template refuses.

        `thinks` asks a template that can for reasoning, or for none; None leaves it to the template.
        """


class ConstraintCompiler(Protocol):
    """Turns constraints into matchers over the model's tokens."""

    async def start(self, constraint: Constraint) -> Matcher:
        """Return a fresh matcher.

        Raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID, CONSTRAINT_TOO_COMPLEX) with the reason why there is none,
        Overloaded and Unavailable when it cannot be built now.
        """
