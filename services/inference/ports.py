"""The roles that the app needs: engine, embedder, tokenizer, template, constraints, measurements, stores."""

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
    """The cache has no room for a batch; nothing of the batch was computed."""


class MeasuringFailed(Exception):
    """The engine could not be measured; the message says why."""


class Prober(Protocol):
    """Measures how the engine runs, beside the engine that serves."""

    async def why_not(self) -> str:
        """Return why measuring is not possible now; empty if it is."""

    def rounds(self) -> AsyncGenerator[Round, None]:
        """Yield rounds; closing the generator ends the measuring at once. Raises MeasuringFailed."""


class TuningStore(Protocol):
    """Keeps measured settings for the next start."""

    def save(self, tuning: Tuning | None) -> str:
        """Store a tuning, or None for a machine without a tuning; return the problem, or an empty text."""


class PrefixStore(Protocol):
    """Stores blocks of KV cells by name, for this and other processes; deletes the least recently used blocks.

    Callable from any thread. A call may block; it never raises: after a failure a block counts as missing.
    """

    def read(self, name: str, max_bytes: int) -> Cells | None:
        """Return a block as written, and note its use; None if it is missing or larger than `max_bytes`."""

    def write(self, name: str, cells: Cells) -> bool:
        """Store a block; False if that fails."""

    def touch(self, name: str) -> bool:
        """Note the use of a block; False if it is missing."""


class Tokenizer(Protocol):
    """Text to a model's tokens and back; callable from any thread."""

    @property
    def longest_token_bytes(self) -> int:
        """Maximum bytes of text in one token."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of tokens."""


class TextEngine(Tokenizer, Protocol):
    """A loaded model and the sequences of its KV cache.

    One thread alone decodes and changes sequences; the tokenizer is callable from any thread.
    """

    @property
    def model(self) -> ModelInfo:
        """The model's description."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""

    @property
    def max_batch_tokens(self) -> int:
        """Maximum tokens of one `decode`, with any number of rows."""

    @property
    def max_prompt_batch_tokens(self) -> int:
        """Maximum tokens of one `decode` with at most one row per slice; at least `max_batch_tokens`."""

    @property
    def mixes_steps(self) -> bool:
        """Whether outputs and prompts take no longer in one `decode` than in two."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Cells of the KV cache; sequences that share tokens share their cells."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of one cell."""

    @property
    def max_sequences(self) -> int:
        """Sequence ids are below this."""

    @property
    def cell_format(self) -> str:
        """All options, besides the model's file, that decide the cells of tokens; empty if copies cannot be cut."""

    def decode(self, slices: Sequence[Slice]) -> Logits:
        """Append each slice to its sequence and return the wanted rows of logits, in order.

        The rows, of shape (rows, vocabulary), are valid until the next `decode`. Raises KvCacheFullError, and Internal
        (INFERENCE_ENGINE_ERROR) if the engine fails; the sequences are then unchanged.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let `target`, which is empty or holds the same tokens, share the first `length` tokens of `source`."""

    def truncate(self, sequence_id: int, length: int) -> None:
        """Forget the tokens of a sequence from position `length` on."""

    def park(self, sequence_id: int, start: int, end: int, key: int) -> None:
        """Keep a copy of the cells of a sequence from position `start` to position `end`, under a new key."""

    def copy_out(self, sequence_id: int, start: int, end: int) -> Cells:
        """Return a copy of the cells of a sequence from position `start` to position `end`."""

    def adopt(self, key: int, cells: Cells) -> None:
        """Keep the result of a `copy_out`, perhaps of another engine with the same `cell_format`, under a new key."""

    def unpark(self, key: int, sequence_id: int, length: int) -> None:
        """Append the cells of a key to a sequence that ends at their start, and cut it to `length` tokens.

        The cache needs room for all cells of the key. Raises Internal (INFERENCE_ENGINE_ERROR) if the engine fails.
        """

    def drop(self, key: int) -> None:
        """Forget the cells of a key; a key without cells is fine."""

    def retune(self, *, threads: int, flash_attention: bool, batch_tokens: int) -> None:
        """Run with these options from now on; the cache is empty afterwards. Only while nothing is decoded.

        Raises PreconditionFailed if memory is short, and keeps the old options.
        """

    def close(self) -> None:
        """Free the model. Nothing may be called afterwards."""


class TextEmbedder(Tokenizer, Protocol):
    """A loaded model that turns texts into vectors. Only one thread at a time calls `embed`."""

    @property
    def model(self) -> ModelInfo:
        """The model's description."""

    @property
    def max_batch_tokens(self) -> int:
        """Maximum tokens of several texts in one `embed`; a single text may fill the context window."""

    @property
    def max_batch_texts(self) -> int:
        """Maximum texts of one `embed`."""

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return a vector per text, in order, of any length; each text has at least one token.

        The vectors are the caller's. Raises Internal (INFERENCE_ENGINE_ERROR) if the engine fails.
        """

    def close(self) -> None:
        """Free the model. Nothing may be called afterwards."""


class CrossEncoder(TextEmbedder, Protocol):
    """A loaded model that reads a query and a text as one sequence; the only component of its vector is the score."""

    @property
    def pair_layout(self) -> PairLayout:
        """The layout of a query and a text in a sequence."""


class ChatTemplate(Protocol):
    """The model's own format of a conversation."""

    @property
    def source(self) -> str:
        """The template's text."""

    @property
    def knows_tools(self) -> bool:
        """Whether the template renders tools."""

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, thinks: bool | None = None
    ) -> str:
        """Render a conversation up to the assistant's turn; raises InvalidRequest if the template refuses it.

        `thinks` switches reasoning on or off in a template that supports it; None leaves the choice to the template.
        """


class ImageEncoder(Protocol):
    """A model's encoder of images. Only one thread at a time uses it."""

    def encode(self, image: DecodedImage, *, only_counts: bool = False) -> tuple[ImagePiece, ...]:
        """Return the pieces of an image in a prompt, in order; with `only_counts` they have no embeddings.

        Raises Internal (INFERENCE_ENGINE_ERROR) if the encoder fails.
        """

    def close(self) -> None:
        """Free the encoder. Nothing may be called afterwards; the model is freed later."""


class RemoteEngine(Protocol):
    """An engine of another process, reached over a network.

    Calls raise Unavailable (INFERENCE_MODEL_UNAVAILABLE) if it is unreachable or its stream breaks, Overloaded
    (INFERENCE_OVERLOADED), PreconditionFailed (CONFIG_NO_ENGINE) if the deployment must be changed, InvalidRequest for
    a refused request, and Internal (INFERENCE_ENGINE_ERROR, INFERENCE_MALFORMED_RESPONSE).
    """

    def stream(self, request: RemoteRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an answer; closing the generator closes the connection."""

    async def embed(self, request: RemoteRequest) -> tuple[Vectors, int]:
        """Return a vector per text, in order, of any length, and the tokens of all texts."""

    async def close(self) -> None:
        """Close all connections. Nothing may be called afterwards."""


class ConstraintCompiler(Protocol):
    """Turns constraints into matchers over the model's tokens."""

    async def start(self, constraint: Constraint) -> Matcher:
        """Return a fresh matcher.

        Raises InvalidRequest (CONSTRAINT_GRAMMAR_INVALID, CONSTRAINT_TOO_COMPLEX) for a constraint that cannot be
        enforced, Overloaded and Unavailable when it cannot be built now.
        """

    def close(self) -> None:
        """Finish the current build and end the thread."""
