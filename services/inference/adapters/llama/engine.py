"""Implements TextEngine with llama.cpp's low-level API. All sequences of a context share one unified KV cache."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from pagantic_common.domain.errors import ErrorCode, Internal, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.llama.cache import BITS_16, LOWER, MAX_SEQUENCES, CacheShape, EngineOptions
from services.inference.adapters.llama.tokenizer import LlamaTokenizer, LlamaVocabulary
from services.inference.adapters.llama.weights import TILE_TOKENS, load_model
from services.inference.core.decoding.sampling import Logits
from services.inference.core.scheduling.batch import Slice
from services.inference.core.scheduling.operations import Cells
from services.inference.ports import KvCacheFullError


class TokenBatch:
    """A llama_batch over preallocated arrays, filled without a call per token.

    With `dimensions`, the batch holds image embeddings instead of tokens. `fill` skips slices of the other kind.
    """

    def __init__(self, capacity: int, dimensions: int = 0) -> None:
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._embeddings = np.zeros((capacity, dimensions), dtype=np.float32)
        self._has_embeddings = dimensions > 0
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._sequences = np.zeros(capacity, dtype=np.int32)
        self._wanted = np.zeros(capacity, dtype=np.int8)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        base = self._sequences.ctypes.data
        self._sequence_rows = (int32_p * capacity)(
            *(ctypes.cast(base + index * self._sequences.itemsize, int32_p) for index in range(capacity))
        )
        self.batch = llama_cpp.llama_batch(
            n_tokens=0,
            token=None if dimensions else self._tokens.ctypes.data_as(int32_p),
            embd=self._embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) if dimensions else None,
            pos=self._positions.ctypes.data_as(int32_p),
            n_seq_id=self._counts.ctypes.data_as(int32_p),
            seq_id=self._sequence_rows,
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, slices: Sequence[Slice]) -> int:
        """Write the slices into the batch and return the number of requested rows of logits."""
        start = rows = 0
        for part in slices:
            if (part.embeddings is not None) != self._has_embeddings:
                continue
            end = start + len(part.tokens)
            if part.embeddings is None:
                self._tokens[start:end] = part.tokens
            else:
                self._embeddings[start:end] = part.embeddings
            self._positions[start:end] = range(part.position, part.position + len(part.tokens))
            self._sequences[start:end] = part.sequence_id
            self._wanted[start:end] = 0
            self._wanted[end - part.logit_rows : end] = 1
            rows += part.logit_rows
            start = end
        self.batch.n_tokens = start
        return rows


_KV_FULL = 1  # llama_decode found too few free cells and changed nothing
_FLASH_ATTENTION_TYPES = {
    True: llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    False: llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_CELL_TYPES = {BITS_16: llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}


class LlamaCppEngine:
    """A loaded GGUF model. Close it to free its memory."""

    def __init__(
        self, path: Path, info: ModelInfo, options: EngineOptions, *, weights: llama_cpp.llama_model_p | None = None
    ) -> None:
        self._owns_model = weights is None
        self._model = weights or load_model(
            path, gpu_layers=options.gpu_layers, use_extra_bufts=options.use_extra_bufts
        )
        self._path = path
        self._window = min(options.context_tokens, llama_cpp.llama_model_n_ctx_train(self._model))
        self._info = replace(info, context_window=self._window)
        self._shape = CacheShape(self._model, path, context_window=self._window)
        self._parked: dict[int, Cells] = {}
        self._has_window = llama_cpp.llama_model_n_swa(self._model) > 0
        try:
            self._shape.check(options)
            self._open_context(options)
        except PreconditionFailed:
            self._free_model()
            raise
        self.vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._tokenizer = LlamaTokenizer(self.vocab)
        self._vocabulary = LlamaVocabulary(self._tokenizer)

    def beside(self, options: EngineOptions) -> LlamaCppEngine:
        """Return an engine with a second context over the same weights. Close it before this engine."""
        return LlamaCppEngine(self._path, self._info, options, weights=self._model)

    def retune(self, **changes: Any) -> None:
        """Switch to other options. Call this only while nothing is decoded; the cache is empty afterwards.

        If there is not enough memory, raises PreconditionFailed and keeps the old options.
        """
        before = self._options
        llama_cpp.llama_free(self._context)
        self._parked.clear()
        try:
            self._open_context(replace(before, **changes))
        except PreconditionFailed:
            self._open_context(before)
            raise

    def set_threads(self, threads: int) -> None:
        """Change the number of threads for decoding, starting with the next step."""
        llama_cpp.llama_set_n_threads(self._context, threads, threads)

    def _open_context(self, options: EngineOptions) -> None:
        max_sequences = options.max_sequences
        if self._has_window:
            max_sequences = min(max_sequences, MAX_SEQUENCES // 2)
        threads = options.threads or os.cpu_count() or 1
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self._shape.cells(options)
        batch_tokens = min(options.batch_tokens, int(params.n_ctx))
        params.n_batch = params.n_ubatch = self._shape.prompt_batch_tokens(options, batch_tokens)
        params.n_seq_max = (max_sequences + 1) * (1 + self._has_window)
        params.n_outputs_max = max(batch_tokens, params.n_seq_max)  # llama.cpp reserves a row for each sequence
        params.kv_unified = True  # sequences share cells, so a copied prefix needs no additional cells
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = _FLASH_ATTENTION_TYPES[options.flash_attention]
        params.type_k, params.type_v = (_CELL_TYPES[name] for name in options.cell_types)
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise PreconditionFailed(
                f"no KV cache of {params.n_ctx} tokens could be made for {str(self._path)!r}: {LOWER}",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        self._options = options
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._max_batch_tokens = batch_tokens
        self._has_tiles = options.flash_attention and not options.gpu_layers
        if self._has_tiles:
            self._max_batch_tokens = min(batch_tokens, TILE_TOKENS - 1)
        self._max_prompt_batch_tokens = int(params.n_batch)
        self._kv_capacity_tokens = int(llama_cpp.llama_n_ctx(self._context))
        self._max_sequences = self._passage = max_sequences
        self._batch = TokenBatch(self._max_prompt_batch_tokens)
        self._logits_at: tuple[int, int] = (0, 0)
        self._logits_there: Logits
        self._image_batch: TokenBatch | None = None

    @property
    def model(self) -> ModelInfo:
        """The model's description."""
        return self._info

    @property
    def weights(self) -> llama_cpp.llama_model_p:
        """The loaded model, for an image encoder; close the encoder before this engine."""
        return self._model

    @property
    def vocabulary(self) -> LlamaVocabulary:
        """The model's tokens."""
        return self._vocabulary

    @property
    def max_batch_tokens(self) -> int:
        """The maximum number of tokens in one call of `decode`, with any number of rows."""
        return self._max_batch_tokens

    @property
    def max_prompt_batch_tokens(self) -> int:
        """The maximum number of tokens in one call of `decode` with at most one row per slice."""
        return self._max_prompt_batch_tokens

    @property
    def mixes_steps(self) -> bool:
        """Whether outputs and prompts in one `decode` call are as fast as in two calls.

        With flash attention on a CPU, a combined call is slower. llama.cpp computes a small number of rows one by one,
        which is slow for prompts, and many rows in tiles, in which each row visits the cells of all sequences.
        """
        return not self._has_tiles

    @property
    def kv_capacity_tokens(self) -> int:
        """The number of cells in the KV cache."""
        return self._kv_capacity_tokens

    @property
    def kv_bytes_per_token(self) -> int:
        """The number of bytes in a cell, which holds the keys and values of every layer."""
        return self._shape.bytes_per_token(self._options)

    @property
    def max_sequences(self) -> int:
        """The maximum number of sequences. Every sequence id is smaller than this number."""
        return self._max_sequences

    @property
    def cell_format(self) -> str:
        """The options that, together with the model's file, determine the content of cells.

        The string is empty if a copy of cells cannot be shortened.
        """
        if self._has_window:
            return ""  # a copy holds only the window before the sequence's end, so it is wrong for a shorter sequence
        key_type, value_type = self._options.cell_types
        # Without flash attention, values are stored in columns. Some models rotate keys in a way that depends on the
        # size of the context.
        return (
            f"llama-cpp-python {llama_cpp.__version__}, states {llama_cpp.LLAMA_STATE_SEQ_VERSION}, "
            f"flash attention {self._options.flash_attention}, keys {key_type}, values {value_type}, "
            f"context {self._kv_capacity_tokens}"
        )

    @property
    def chat_template(self) -> str:
        """The model's chat template, or an empty string if the model has no template."""
        template = llama_cpp.llama_model_chat_template(self._model, None)
        if not template:
            return ""
        return str(template.decode("utf-8", "replace"))

    def special_text(self, token: int) -> str:
        """Return the text of a control token. A negative id stands for no token, for which the text is empty."""
        if token < 0:
            return ""
        return self._tokenizer.render(token, with_special=True).decode("utf-8", "replace")

    @property
    def bos_text(self) -> str:
        """The text of the begin-of-text token."""
        return self.special_text(llama_cpp.llama_vocab_bos(self.vocab))

    @property
    def eos_text(self) -> str:
        """The text of the end-of-text token."""
        return self.special_text(llama_cpp.llama_vocab_eos(self.vocab))

    @property
    def longest_token_bytes(self) -> int:
        """The maximum number of bytes of text in one token."""
        return self._tokenizer.longest_token_bytes

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""
        return self._tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of the tokens. Ids outside the vocabulary are skipped."""
        return self._tokenizer.detokenize(tokens, with_special=with_special)

    def decode(self, slices: Sequence[Slice]) -> Logits:
        """Append each slice to its sequence and return the requested rows of logits, in order."""
        rows = self._batch.fill(slices)
        code = self._decode_images(slices) or self._run(self._batch)
        if code != 0:
            for part in slices:
                self.truncate(part.sequence_id, part.position)
            if code == _KV_FULL:
                raise KvCacheFullError
            raise Internal(
                f"llama_decode of {self._batch.batch.n_tokens} tokens gave {code}",
                code=ErrorCode.INFERENCE_ENGINE_ERROR,
            )
        for part in slices if self._has_window else ():
            self._hold_twice(part.sequence_id, part.position)
        if not rows:
            return np.empty((0, self._vocabulary.size), dtype=np.float32)
        return self._logits(rows)

    def _logits(self, rows: int) -> Logits:
        """Return a view of llama.cpp's rows of logits. The view is reused until the rows move."""
        pointer = llama_cpp.llama_get_logits(self._context)
        address = ctypes.addressof(pointer.contents)
        if (address, rows) != self._logits_at:
            self._logits_at = (address, rows)
            self._logits_there = np.ctypeslib.as_array(pointer, shape=(rows, self._vocabulary.size))
        return self._logits_there

    def _decode_images(self, slices: Sequence[Slice]) -> int:
        """Decode the embeddings in a separate batch, as llama.cpp requires.

        Returns llama.cpp's code, or 0 if there are no embeddings.
        """
        if all(part.embeddings is None for part in slices):
            return 0
        if self._image_batch is None:
            dimensions = int(llama_cpp.llama_model_n_embd_inp(self._model))
            self._image_batch = TokenBatch(self._max_prompt_batch_tokens, dimensions)
        self._image_batch.fill(slices)
        return self._run(self._image_batch)

    def _run(self, filled: TokenBatch) -> int:
        """Decode a batch and return llama.cpp's code, or 0 if the batch is empty."""
        if not filled.batch.n_tokens:
            return 0
        return int(llama_cpp.llama_decode(self._context, filled.batch))

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Share the first `length` tokens of `source` with `target`."""
        llama_cpp.llama_memory_seq_rm(self._memory, target, 0, length)
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, length)
        if self._has_window:
            self._hold_twice(target, 0)

    def _hold_twice(self, sequence_id: int, start: int) -> None:
        """Make a second sequence hold the cells of a sequence from position `start` on.

        llama.cpp frees a cell that only one sequence holds once that sequence's window has passed the cell. However,
        the cell is still needed after a truncation, or by a sequence that shares a prefix.
        """
        second = self._second(sequence_id)
        llama_cpp.llama_memory_seq_rm(self._memory, second, start, -1)
        llama_cpp.llama_memory_seq_cp(self._memory, sequence_id, second, start, -1)

    def _second(self, sequence_id: int) -> int:
        return self._passage + 1 + sequence_id

    def park(self, sequence_id: int, start: int, end: int, key: int) -> None:
        """Park a copy of the cells of a sequence, from position `start` to position `end`, under `key`."""
        self._parked[key] = self.copy_out(sequence_id, start, end)

    def copy_out(self, sequence_id: int, start: int, end: int) -> Cells:
        """Return a copy of the cells of a sequence from position `start` to position `end`."""
        llama_cpp.llama_memory_seq_cp(self._memory, sequence_id, self._passage, start, end)
        cells = self._state_of(self._passage)
        self.truncate(self._passage, 0)
        return cells

    def adopt(self, key: int, cells: Cells) -> None:
        """Keep cells that `copy_out` returned, under `key`."""
        self._parked[key] = cells

    def unpark(self, key: int, sequence_id: int, length: int) -> None:
        """Append the parked cells of `key` to a sequence that ends where they start, then cut it to `length` tokens."""
        cells = self._parked[key]
        pointer = cells.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not llama_cpp.llama_state_seq_set_data(self._context, pointer, cells.size, self._passage):
            raise Internal(
                f"{cells.size} bytes of the KV cache could not be restored", code=ErrorCode.INFERENCE_ENGINE_ERROR
            )
        llama_cpp.llama_memory_seq_cp(self._memory, self._passage, sequence_id, -1, -1)
        self.truncate(self._passage, 0)
        self.truncate(sequence_id, length)

    def drop(self, key: int) -> None:
        """Drop any parked cells of `key`."""
        self._parked.pop(key, None)

    def _state_of(self, sequence_id: int) -> Cells:
        cells = np.empty(llama_cpp.llama_state_seq_get_size(self._context, sequence_id), dtype=np.uint8)
        pointer = cells.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return cells[: llama_cpp.llama_state_seq_get_data(self._context, pointer, cells.size, sequence_id)]

    def truncate(self, sequence_id: int, length: int) -> None:
        """Delete the tokens of a sequence from position `length` onwards."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence_id, length, -1)
        if self._has_window:
            llama_cpp.llama_memory_seq_rm(self._memory, self._second(sequence_id), length, -1)

    def close(self) -> None:
        """Free the model. Do not use the object afterwards."""
        llama_cpp.llama_free(self._context)
        self._free_model()

    def _free_model(self) -> None:
        if self._owns_model:
            llama_cpp.llama_model_free(self._model)
