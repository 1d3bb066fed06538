"""Defines the options for loading a model, and checks that its KV cache is supported and fits into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from services.inference.adapters.llama.weights import read_metadata
from services.inference.adapters.machine import free_memory_bytes

BITS_16 = "f16"
MAX_SEQUENCES = 255  # llama.cpp allows 256; one of them is reserved for copying cells in and out
MAX_SCORES_BYTES = 256 * 1024 * 1024  # maximum memory of attention scores in large batches of prompts
LOWER = "lower PAGANTIC_INFERENCE_KV_TOKENS or CONTEXT_TOKENS, or free memory"
_NUMBER_BYTES = {BITS_16: 2.0, "q8_0": 34 / 32}  # 32 8-bit numbers share a 16-bit scale
_SHARED_SCALE = 32
_MIB = 1024 * 1024
_SCORE_BYTES = 4


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options for loading a model.

    A `threads` of 0 selects the number of cores, a `gpu_layers` of -1 selects all layers, and a `kv_tokens` of 0
    selects twice the context window. If `kv_tokens` is smaller than the window, the cache still has as many cells as
    the window. Keys and values are f16 or q8_0; without flash attention, values are always f16. A batch that contains
    only prompts may have up to `prompt_steps` times `batch_tokens` tokens.
    """

    context_tokens: int = 4096
    kv_tokens: int = 0
    max_sequences: int = 64
    batch_tokens: int = 64
    threads: int = 0
    gpu_layers: int = 0
    flash_attention: bool = False
    use_extra_bufts: bool = True
    key_type: str = BITS_16
    value_type: str = BITS_16
    prompt_steps: int = 4

    @property
    def cell_types(self) -> tuple[str, str]:
        """The types of keys and values. Values are 16-bit without flash attention, because 8-bit values require it."""
        if self.flash_attention:
            return self.key_type, self.value_type
        return self.key_type, BITS_16


class CacheShape:
    """Computes the size of a model's KV cache from the options, and checks that the cache is supported."""

    def __init__(self, model: llama_cpp.llama_model_p, path: Path, *, context_window: int) -> None:
        self._model = model
        self._path = path
        self._window = context_window

    def check(self, options: EngineOptions) -> None:
        """Raise PreconditionFailed (CONFIG_NO_ENGINE) if the model or the cache is not supported."""
        self._check_kind()
        if {options.key_type, options.value_type} != {BITS_16}:
            self._check_small_numbers()
        self._check_memory(options)

    def cells(self, options: EngineOptions) -> int:
        """Return the number of cells in the KV cache."""
        return int(max(self._window, options.kv_tokens or 2 * self._window))

    def bytes_per_token(self, options: EngineOptions) -> int:
        """Return the number of bytes in a cell, which holds the keys and values of every layer."""
        types = zip(self._widths, options.cell_types, strict=True)
        bytes_of_head = sum(width * _NUMBER_BYTES[name] for width, name in types)
        heads = llama_cpp.llama_model_n_layer(self._model) * llama_cpp.llama_model_n_head_kv(self._model)
        return int(heads * bytes_of_head)

    def prompt_batch_tokens(self, options: EngineOptions, batch_tokens: int) -> int:
        """Return the maximum number of tokens in a batch of prompts.

        Without flash attention, the maximum also bounds memory, because llama.cpp allocates the scores of all cells for
        each token of the largest batch.
        """
        cells = self.cells(options)
        limit = min(options.prompt_steps * batch_tokens, cells)
        if not options.flash_attention:
            scores_bytes = cells * llama_cpp.llama_model_n_head(self._model) * _SCORE_BYTES
            limit = min(limit, MAX_SCORES_BYTES // scores_bytes)
        return max(batch_tokens, limit)

    def _check_kind(self) -> None:
        if llama_cpp.llama_model_is_recurrent(self._model) or llama_cpp.llama_model_is_hybrid(self._model):
            raise PreconditionFailed(
                f"{str(self._path)!r} is a recurrent or hybrid model, which cannot forget single tokens: use "
                "a model of another kind, or name an engine that serves this one in PAGANTIC_INFERENCE_REMOTES",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )

    def _check_small_numbers(self) -> None:
        """Raise PreconditionFailed if the model's keys and values cannot be stored in 8 bits."""
        if any(width % _SHARED_SCALE for width in self._widths):
            widths = " and ".join(map(str, self._widths))
            raise PreconditionFailed(
                f"{str(self._path)!r} has keys and values of {widths} numbers, which 8 bits cannot hold: "
                f"{_SHARED_SCALE} of them share a scale; set PAGANTIC_INFERENCE_CACHE_TYPE to {BITS_16}",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        if read_metadata(self._model, f"{self._architecture}.attention.key_length_mla"):
            raise PreconditionFailed(
                f"{str(self._path)!r} has latent attention, whose keys and values llama.cpp keeps in one type: set "
                f"PAGANTIC_INFERENCE_CACHE_TYPE to {BITS_16}",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )

    def _check_memory(self, options: EngineOptions) -> None:
        """Raise PreconditionFailed if the cache exceeds the free memory of this machine.

        Otherwise, the system might kill this service or another process. GPU memory is not counted.
        """
        cells = self.cells(options)
        needed, free = cells * self.bytes_per_token(options), free_memory_bytes()
        if needed > free and options.gpu_layers == 0:
            raise PreconditionFailed(
                f"no KV cache of {cells} tokens could be made for {str(self._path)!r}: it takes "
                f"{needed // _MIB} MiB, and {free // _MIB} MiB are free; {LOWER}",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )

    @property
    def _architecture(self) -> str:
        return read_metadata(self._model, "general.architecture")

    @property
    def _widths(self) -> list[int]:
        """The widths of a head's keys and of its values."""
        model = self._model
        usual = llama_cpp.llama_model_n_embd(model) // (llama_cpp.llama_model_n_head(model) or 1)
        lengths = [read_metadata(model, f"{self._architecture}.attention.{part}_length") for part in ("key", "value")]
        return [int(width) if width.isdigit() else usual for width in lengths]
