"""Defines the service's ports: engine, embedder, tokenizer, chat template, constraints, measurements and stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from pagantic_common.domain.messages import ModelInfo
from services.inference.core.decoding.images import DecodedImage, ImagePiece
from services.inference.core.decoding.output import Matcher, Vocabulary
from services.inference.core.decoding.sampling import Logits
from services.inference.core.embedding import Vectors
from services.inference.core.generation import Constraint
from services.inference.core.pairs import PairLayout
from services.inference.core.remote.answers import Chunk
from services.inference.core.remote.requests import RemoteRequest
from services.inference.core.scheduling.batch import Slice
from services.inference.core.scheduling.operations import Cells
from services.inference.core.tuning import Round, Tuning


class KvCacheFullError(Exception):
    """Raised if the cache has no room for a batch. No part of the batch was computed."""


class MeasuringFailed(Exception):
    """Raised if the engine could not be measured. The message contains the reason."""


class Prober(Protocol):
    """Measures how fast the engine runs, separately from the engine that serves requests."""

    async def why_not(self) -> str:
        """Return the reason why measuring is impossible now, or an empty string if it is possible."""

    def rounds(self) -> AsyncGenerator[Round, None]:
        """Yield rounds. Closing the generator ends the measurement at once. Raises MeasuringFailed."""


class TuningStore(Protocol):
    """Stores measured settings for the next start."""

    def save(self, tuning: Tuning | None) -> str:
        """Store a tuning, or None if the machine has no tuning.

        Returns a description of the problem if storing fails, or an empty string.
        """


class PrefixStore(Protocol):
    """Stores blocks of KV cells by name, for this and other processes. Deletes the least recently used blocks.

    Callable from any thread. A call may block, but it never raises: after a failure, a block counts as missing.
    """

    def read(self, name: str, max_bytes: int) -> Cells | None:
        """Return a block, and record its use.

        Returns None if the block is missing or larger than `max_bytes`.
        """

    def write(self, name: str, cells: Cells) -> bool:
        """Store a block, and return False if storing fails."""

    def touch(self, name: str) -> bool:
        """Record the use of a block, and return False if the block is missing."""


class Tokenizer(Protocol):
    """Converts text to a model's tokens and back; callable from any thread."""

    @property
    def longest_token_bytes(self) -> int:
        """The maximum number of bytes of text in one token."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of tokens."""


class TextEngine(Tokenizer, Protocol):
    """A loaded model and the sequences of its KV cache.

    Only one thread decodes and changes sequences. The tokenizer is callable from any thread.
    """

    @property
    def model(self) -> ModelInfo:
        """The model's description."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""

    @property
    def max_batch_tokens(self) -> int:
        """The maximum number of tokens in one call of `decode`, with any number of rows."""

    @property
    def max_prompt_batch_tokens(self) -> int:
        """The maximum number of tokens in one call of `decode` with at most one row per slice.

        It is at least `max_batch_tokens`.
        """

    @property
    def mixes_steps(self) -> bool:
        """Whether outputs and prompts in one `decode` call are as fast as in two calls."""

    @property
    def kv_capacity_tokens(self) -> int:
        """The number of cells in the KV cache. Sequences that share tokens share their cells."""

    @property
    def kv_bytes_per_token(self) -> int:
        """The number of bytes in one cell."""

    @property
    def max_sequences(self) -> int:
        """The maximum number of sequences. Every sequence id is smaller than this number."""

    @property
    def cell_format(self) -> str:
        """The options that, together with the model's file, determine the content of cells.

        The string is empty if a copy of cells cannot be shortened.
        """

    def decode(self, slices: Sequence[Slice]) -> Logits:
        """Append each slice to its sequence and return the requested rows of logits, in order.

        The rows, of shape (rows, vocabulary), are valid until the next `decode`. Raises KvCacheFullError if the cache
        has no room, and Internal (INFERENCE_ENGINE_ERROR) if the engine fails. After an error, the sequences are
        unchanged.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Share the first `length` tokens of `source` with `target`, which must be empty or hold the same tokens."""

    def truncate(self, sequence_id: int, length: int) -> None:
        """Delete the tokens of a sequence from position `length` onwards."""

    def park(self, sequence_id: int, start: int, end: int, key: int) -> None:
        """Park a copy of the cells of a sequence, from position `start` to position `end`, under a new key."""

    def copy_out(self, sequence_id: int, start: int, end: int) -> Cells:
        """Return a copy of the cells of a sequence from position `start` to position `end`."""

    def adopt(self, key: int, cells: Cells) -> None:
        """Keep cells that `copy_out` returned, under a new key.

        The cells may come from another engine with the same `cell_format`.
        """

    def unpark(self, key: int, sequence_id: int, length: int) -> None:
        """Append the parked cells of `key` to a sequence that ends where they start, then cut it to `length` tokens.

        The cache needs room for all cells of the key. Raises Internal (INFERENCE_ENGINE_ERROR) if the engine fails.
        """

    def drop(self, key: int) -> None:
        """Drop any parked cells of `key`."""

    def retune(self, *, threads: int, flash_attention: bool, batch_tokens: int) -> None:
        """Switch to these options. Call this only while nothing is decoded; the cache is empty afterwards.

        If there is not enough memory, raises PreconditionFailed and keeps the old options.
        """

    def close(self) -> None:
        """Free the model. Do not use the object afterwards."""


class TextEmbedder(Tokenizer, Protocol):
    """A loaded model that turns texts into vectors. Only one thread at a time may call `embed`."""

    @property
    def model(self) -> ModelInfo:
        """The model's description."""

    @property
    def max_batch_tokens(self) -> int:
        """The maximum total number of tokens if one call of `embed` has several texts.

        A single text may fill the context window.
        """

    @property
    def max_batch_texts(self) -> int:
        """The maximum number of texts in one call of `embed`."""

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return one vector of any length per text, in order. Each text has at least one token.

        The caller owns the vectors. Raises Internal (INFERENCE_ENGINE_ERROR) if the engine fails.
        """

    def close(self) -> None:
        """Free the model. Do not use the object afterwards."""


class CrossEncoder(TextEmbedder, Protocol):
    """A loaded model that reads a query and a text as one sequence.

    The only component of the returned vector is the score.
    """

    @property
    def pair_layout(self) -> PairLayout:
        """The layout of a query and a text in a sequence."""


class ChatTemplate(Protocol):
    """Renders a conversation in the model's format."""

    @property
    def source(self) -> str:
        """The source text of the template."""

    @property
    def knows_tools(self) -> bool:
        """Whether the template renders tools."""

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, thinks: bool | None = None
    ) -> str:
        """Render a conversation up to the start of the assistant's turn.

        Raises InvalidRequest if the template rejects the conversation. `thinks` switches reasoning on or off in a
        template that supports it; None leaves the choice to the template.
        """


class ImageEncoder(Protocol):
    """The image encoder of a model. Only one thread at a time may use it."""

    def encode(self, image: DecodedImage, *, only_counts: bool = False) -> tuple[ImagePiece, ...]:
        """Return the pieces of an image in a prompt, in order. With `only_counts`, they have no embeddings.

        Raises Internal (INFERENCE_ENGINE_ERROR) if the encoder fails.
        """

    def close(self) -> None:
        """Free the encoder, before the model is freed. Do not use the object afterwards."""


class RemoteEngine(Protocol):
    """An engine in another process, reached over a network.

    Calls raise Unavailable (INFERENCE_MODEL_UNAVAILABLE) if the engine is unreachable or its stream breaks,
    InvalidRequest if the engine rejects the request, and PreconditionFailed (CONFIG_NO_ENGINE) if the deployment must
    be changed. They also raise Overloaded (INFERENCE_OVERLOADED) and Internal (INFERENCE_ENGINE_ERROR,
    INFERENCE_MALFORMED_RESPONSE).
    """

    def stream(self, request: RemoteRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an answer; closing the generator closes the connection."""

    async def embed(self, request: RemoteRequest) -> tuple[Vectors, int]:
        """Return one vector of any length per text, in order, and the number of tokens in all texts."""

    async def close(self) -> None:
        """Close all connections. Do not use the object afterwards."""


class ConstraintCompiler(Protocol):
    """Turns constraints into matchers over the model's tokens."""

    async def start(self, constraint: Constraint) -> Matcher:
        """Return a new matcher.

        Raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID, CONSTRAINT_TOO_COMPLEX) if the constraint cannot be enforced,
        and Overloaded or Unavailable if it cannot be built now.
        """

    def close(self) -> None:
        """Finish the current build and end the thread."""
