"""A scripted text engine with one token per byte, whose logits are a function of the preceding tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.errors import Internal
from pagantic_common.domain.messages import ModelInfo

END_TOKEN = 256
VOCABULARY_SIZE = 257
CERTAIN = 50.0

Logits = NDArray[np.float32]
Piece = NDArray[np.uint8]


class ByteVocabulary:
    """A vocabulary whose tokens 0 to 255 are bytes, and whose token 256 ends the output."""

    size = VOCABULARY_SIZE
    end_tokens = frozenset({END_TOKEN})
    control_texts: tuple[str, ...] = ("<end>",)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""
        if token == END_TOKEN:
            return b""
        return bytes([token])


def logits_of_script(script: str) -> Callable[[Sequence[int]], Logits]:
    """Return a function whose logits make `script`, followed by the end token, certain after any prompt."""
    output: list[int] = [*script.encode(), END_TOKEN]

    def logits(tokens: Sequence[int]) -> Logits:
        sizes = range(min(len(output), len(tokens)), -1, -1)
        size = next(size for size in sizes if list(tokens[len(tokens) - size :]) == output[:size])
        row = np.zeros(VOCABULARY_SIZE, dtype=np.float32)
        row[output[min(size, len(output) - 1)]] = CERTAIN
        return row

    return logits


def random_logits(tokens: Sequence[int], *, spread: float = 3.0) -> Logits:
    """Return random logits that depend only on the tokens."""
    row = np.random.default_rng(list(tokens)).normal(0, spread, VOCABULARY_SIZE)
    return row.astype(np.float32)


class ScriptedEngine:
    """Keeps its sequences like a real engine, and raises the same errors for a wrong position or too many cells.

    Args:
        script: The output after any prompt.
        logits_of: Returns the logits after the given tokens, instead of a script.
        longest_token_bytes: The declared length of the longest token; the real length is 1.
        on_decode: Called with the slices of every batch before it is decoded. An error that it raises is propagated.

    Attributes:
        refuses_adopted: Whether restoring adopted pieces fails.
    """

    def __init__(
        self,
        script: str = "hello",
        *,
        logits_of: Callable[[Sequence[int]], Logits] | None = None,
        context_window: int = 512,
        kv_capacity_tokens: int = 4096,
        max_sequences: int = 64,
        longest_token_bytes: int = 32,
        on_decode: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        self.model = ModelInfo(name="scripted", context_window=context_window, capabilities=("chat",))
        self.vocabulary = ByteVocabulary()
        self.max_batch_tokens = 64
        self.max_prompt_batch_tokens = 256
        self.mixes_steps = True
        self.longest_token_bytes = longest_token_bytes
        self.kv_capacity_tokens = kv_capacity_tokens
        self.max_sequences = max_sequences
        self.parked: dict[int, Piece] = {}
        self.refuses_adopted = False
        self._adopted: set[int] = set()
        self.kv_bytes_per_token = 1
        self.cell_format = "scripted"
        self.batches: list[tuple[tuple[int, ...], ...]] = []
        self._logits_of = logits_of or logits_of_script(script)
        self._sequences: list[list[tuple[int, object]]] = [[] for _ in range(max_sequences)]
        self._on_decode = on_decode

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:  # noqa: ARG002 - no specials
        """Return the bytes of the text."""
        return list(text.encode())

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:  # noqa: ARG002 - no specials
        """Return the bytes of tokens."""
        return b"".join(self.vocabulary.piece(token) for token in tokens if 0 <= token < VOCABULARY_SIZE)

    def decode(self, slices: Sequence[Any]) -> Logits:
        """Append each slice to its sequence and return the requested rows of logits, in order."""
        if self._on_decode is not None:
            self._on_decode(slices)
        batch_tokens = sum(len(part.tokens) for part in slices)
        limit = self.max_batch_tokens
        if all(part.logit_rows <= 1 for part in slices):
            limit = self.max_prompt_batch_tokens
        if not 0 < batch_tokens <= limit:
            raise AssertionError(f"a batch of {batch_tokens} tokens")
        rows = [row for part in slices for row in self._append(part)]
        if self.kv_used_tokens > self.kv_capacity_tokens:
            raise AssertionError(f"{self.kv_used_tokens} cells are used, there are {self.kv_capacity_tokens}")
        self.batches.append(tuple(tuple(part.tokens) for part in slices))
        return np.array(rows, dtype=np.float32).reshape(len(rows), VOCABULARY_SIZE)

    def _append(self, part: Any) -> list[Logits]:
        sequence = self._sequences[part.sequence_id]
        if part.position != len(sequence):
            raise AssertionError(f"decode at {part.position}, but the sequence has {len(sequence)} tokens")
        sequence.extend((token, object()) for token in part.tokens)
        tokens = [token for token, _ in sequence]
        return [self._logits_of(tokens[: len(tokens) - back]) for back in range(part.logit_rows - 1, -1, -1)]

    @property
    def kv_used_tokens(self) -> int:
        """The number of used cells. Shared cells count once."""
        return len({cell for sequence in self._sequences for _, cell in sequence})

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Share the first `length` tokens of `source` with `target`."""
        before, shared = self._sequences[target], self._sequences[source][:length]
        if len(shared) < length or [token for token, _ in before[:length]] not in ([], [token for token, _ in shared]):
            raise AssertionError(f"copy of {length} tokens from {source} to {target}")
        self._sequences[target] = [*shared, *before[length:]]

    def park(self, sequence_id: int, start: int, end: int, key: int) -> None:
        """Keep the tokens of a part of a sequence under a key."""
        self._keep(key, self._copy_of(sequence_id, start, end))

    def copy_out(self, sequence_id: int, start: int, end: int) -> Piece:
        """Return the tokens of a part of a sequence, and the position at which the part starts."""
        return self._copy_of(sequence_id, start, end)

    def adopt(self, key: int, cells: Piece) -> None:
        """Keep the cells that `copy_out` returned, under a key."""
        self._keep(key, cells)
        self._adopted.add(key)

    def unpark(self, key: int, sequence_id: int, length: int) -> None:
        """Append the tokens of a key to a sequence, and truncate the sequence to `length` tokens."""
        if self.refuses_adopted and key in self._adopted:
            raise Internal("the cells are refused")
        start, *tokens = self.parked[key].view("<i4").tolist()
        sequence = self._sequences[sequence_id]
        if len(sequence) != start:
            raise AssertionError(f"a piece from {start} follows {len(sequence)} tokens")
        sequence += [(token, object()) for token in tokens]
        del sequence[length:]

    def drop(self, key: int) -> None:
        """Delete the tokens of a key, if any."""
        self.parked.pop(key, None)

    def _copy_of(self, sequence_id: int, start: int, end: int) -> Piece:
        tokens = [token for token, _ in self._sequences[sequence_id][start:end]]
        if len(tokens) < end - start:
            raise AssertionError(f"sequence {sequence_id} ends before {end}")
        return np.array([start, *tokens], dtype="<i4").view(np.uint8)

    def _keep(self, key: int, cells: Piece) -> None:
        if key in self.parked:
            raise AssertionError(f"{key} is parked already")
        self.parked[key] = cells

    def truncate(self, sequence_id: int, length: int) -> None:
        """Delete the tokens of a sequence from position `length` onwards."""
        del self._sequences[sequence_id][length:]

    def close(self) -> None:
        """Clear every sequence."""
        self._sequences = [[] for _ in range(self.max_sequences)]
