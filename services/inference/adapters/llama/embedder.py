"""Implements TextEmbedder and CrossEncoder with llama.cpp's low-level API. Each batch starts with an empty cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, cast

import llama_cpp
import numpy as np

from pagantic_common.domain.errors import ErrorCode, Internal, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import TokenBatch
from services.inference.adapters.llama.tokenizer import LlamaTokenizer
from services.inference.adapters.llama.weights import TILE_TOKENS, load_model, read_metadata
from services.inference.adapters.openmp import release_threads
from services.inference.core import embedding, pairs
from services.inference.core.embedding import Vectors
from services.inference.core.pairs import PairLayout, split_template
from services.inference.core.scheduling.batch import Slice

_TEMPLATE = b"rerank"  # name of the template for a pair of texts
_YES_AND_NO = 2  # number of outputs of a Qwen3 reranker
_NO_TOKEN = llama_cpp.LLAMA_TOKEN_NULL
_LEAST_PROBABILITY = np.finfo(np.float32).tiny


@dataclass(frozen=True, slots=True)
class EmbedderOptions:
    """Options for loading a model.

    The texts of a batch have at most `batch_tokens` tokens in total. A longer text, up to the window, is processed
    alone. `pooling` overrides the model's pooling. A `threads` of 0 selects the number of cores, and a `gpu_layers` of
    -1 selects all layers.
    """

    context_tokens: int = 4096
    batch_tokens: int = 256
    max_texts: int = 64
    threads: int = 0
    gpu_layers: int = 0
    use_extra_bufts: bool = True
    pooling: int = llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED

    @classmethod
    def like(cls, options: EngineOptions) -> EmbedderOptions:
        """Return the embedder options that match the engine's options."""
        return cls(
            context_tokens=options.context_tokens,
            threads=options.threads,
            gpu_layers=options.gpu_layers,
            use_extra_bufts=options.use_extra_bufts,
        )


class _Context:
    """A context of a pooling model, for batches of at most `tokens` tokens.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if there is not enough memory.
    """

    def __init__(
        self,
        model: llama_cpp.llama_model_p,
        path: Path,
        tokens: int,
        options: EmbedderOptions,
        *,
        flash_attention: int,
    ) -> None:
        self._context = llama_cpp.llama_init_from_model(model, _context_params(tokens, options, flash_attention))
        if not self._context:
            raise PreconditionFailed(
                f"no context of {tokens} tokens could be made for {str(path)!r}: lower context_tokens or free memory",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        self.pooling: int = llama_cpp.llama_pooling_type(self._context)
        self._memory = llama_cpp.llama_get_memory(self._context)  # an encoder has no KV cache, so this is None
        self._compute = llama_cpp.llama_encode
        if self._memory and llama_cpp.llama_model_has_decoder(model):
            self._compute = llama_cpp.llama_decode
        self._batch = TokenBatch(tokens)

    def pool(self, texts: Sequence[Sequence[int]], dimensions: int) -> Vectors:
        """Return one vector per text, in order."""
        self._batch.fill([Slice(index, list(tokens), 0, len(tokens)) for index, tokens in enumerate(texts)])
        if self._memory:
            llama_cpp.llama_memory_clear(self._memory, False)
        code = self._compute(self._context, self._batch.batch)
        if code != 0:
            raise Internal(
                f"{self._compute.__name__} of {self._batch.batch.n_tokens} tokens gave {code}",
                code=ErrorCode.INFERENCE_ENGINE_ERROR,
            )
        rows = (llama_cpp.llama_get_embeddings_seq(self._context, index) for index in range(len(texts)))
        return np.stack([np.ctypeslib.as_array(row, shape=(dimensions,)) for row in rows])

    def close(self) -> None:
        """Free the context's memory. Do not use the object afterwards."""
        llama_cpp.llama_free(self._context)


class LlamaCppEmbedder:
    """A loaded GGUF model that pools a text into a vector. Close it to free its memory."""

    poolings: ClassVar[Mapping[int, str]] = MappingProxyType(
        {
            llama_cpp.LLAMA_POOLING_TYPE_MEAN: "mean",
            llama_cpp.LLAMA_POOLING_TYPE_CLS: "cls",
            llama_cpp.LLAMA_POOLING_TYPE_LAST: "last",
        }
    )
    purpose: ClassVar[str] = "makes no embeddings: its pooling is none of mean, cls and last"

    def __init__(self, path: Path, info: ModelInfo, options: EmbedderOptions) -> None:
        self._model = load_model(path, gpu_layers=options.gpu_layers, use_extra_bufts=options.use_extra_bufts)
        window = min(options.context_tokens, llama_cpp.llama_model_n_ctx_train(self._model))
        self._contexts: list[_Context] = []
        try:
            self._open_contexts(path, window, options)
            self.pooling = self._name_pooling(path)
        except PreconditionFailed:
            self.close()
            raise
        self._tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(self._model))
        self._info = replace(info, context_window=window)
        self._dimensions = int(llama_cpp.llama_model_n_embd_out(self._model))
        self._options = options

    @property
    def model(self) -> ModelInfo:
        """The model's description."""
        return self._info

    @property
    def max_batch_tokens(self) -> int:
        """The maximum total number of tokens if one call of `embed` has several texts."""
        return self._options.batch_tokens

    @property
    def max_batch_texts(self) -> int:
        """The maximum number of texts in one call of `embed`."""
        return self._options.max_texts

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

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return one vector per text, in order."""
        is_small = sum(map(len, texts)) < TILE_TOKENS
        try:
            return self._contexts[-1 if is_small else 0].pool(texts, self._dimensions)
        finally:
            release_threads()  # otherwise, this thread's pool would make the threads of other models spin only briefly

    def close(self) -> None:
        """Free the model. Do not use the object afterwards."""
        for context in self._contexts:
            context.close()
        llama_cpp.llama_model_free(self._model)

    def _name_pooling(self, path: Path) -> str:
        """Return the name of the model's pooling. Raises PreconditionFailed (CONFIG_NO_ENGINE) if it is unsuitable."""
        pooling = self.poolings.get(self._contexts[0].pooling, "")
        if not pooling:
            raise PreconditionFailed(f"{str(path)!r} {self.purpose}", code=ErrorCode.CONFIG_NO_ENGINE)
        return pooling

    def _open_contexts(self, path: Path, window: int, options: EmbedderOptions) -> None:
        """Open a context for all batches and, on a CPU, a second context for small batches."""
        # Unlike in decoding, flash attention is worthwhile here on a CPU: full batches run nearly twice as fast and
        # need less memory.
        auto, off = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        tokens = max(window, options.batch_tokens)
        self._contexts.append(_Context(self._model, path, tokens, options, flash_attention=auto))
        if options.gpu_layers == 0:
            self._contexts.append(_Context(self._model, path, TILE_TOKENS, options, flash_attention=off))


class LlamaCppCrossEncoder(LlamaCppEmbedder):
    """A loaded GGUF model whose classification head scores a query and a text.

    The engine adds the vector of the first token type to all tokens, including those of the text. A model that was
    trained with a second type for the text is therefore less accurate here than in its original framework.
    """

    poolings: ClassVar[Mapping[int, str]] = MappingProxyType({llama_cpp.LLAMA_POOLING_TYPE_RANK: "rank"})
    purpose: ClassVar[str] = "is no cross-encoder: its pooling is not rank"

    def __init__(self, path: Path, info: ModelInfo, options: EmbedderOptions) -> None:
        super().__init__(path, info, options)
        self._dimensions = int(llama_cpp.llama_model_n_cls_out(self._model))
        try:
            self.pair_layout = self._read_layout()
            self._check_outputs()
        except PreconditionFailed:
            self.close()
            raise

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return one row per sequence, in order; each row holds the sequence's score."""
        rows = super().embed(texts)
        if self._dimensions == 1:
            return rows
        # The engine returns the two outputs as probabilities. The score is the logarithm of their ratio.
        logarithms = np.log(np.maximum(rows, _LEAST_PROBABILITY))
        return cast("Vectors", logarithms[:, :1] - logarithms[:, 1:])

    def _check_outputs(self) -> None:
        """Raise PreconditionFailed if the head has several outputs, except the two outputs of a Qwen3 reranker."""
        architecture = read_metadata(self._model, "general.architecture")
        if self._dimensions == 1 or (self._dimensions == _YES_AND_NO and architecture.startswith("qwen3")):
            return
        raise PreconditionFailed(
            f"model {self._info.name!r} has {self._dimensions} outputs: the head of a cross-encoder has one",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )

    def _read_layout(self) -> PairLayout:
        """Return the layout of a pair, from the file's template or from the special tokens of the vocabulary."""
        template = llama_cpp.llama_model_chat_template(self._model, _TEMPLATE)
        if not template:
            return self._special_layout()
        parts = split_template(template.decode("utf-8", "replace"))
        if parts is None:
            raise PreconditionFailed(
                f"the template 'rerank' of model {self._info.name!r} has no {{query}} before a {{document}}",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        before, between, after = (
            tuple(self.tokenize(part, add_special=False, parse_special=True)) for part in parts.fixed
        )
        return PairLayout(before, between, after, parts.query_lead, parts.text_lead)

    def _special_layout(self) -> PairLayout:
        vocab = self._tokenizer.vocab
        separator = llama_cpp.llama_vocab_sep(vocab)
        end = llama_cpp.llama_vocab_eos(vocab)
        if end == _NO_TOKEN:
            end = separator
        begins = [llama_cpp.llama_vocab_bos(vocab)] * llama_cpp.llama_vocab_get_add_bos(vocab)
        ends = [end] * llama_cpp.llama_vocab_get_add_eos(vocab)
        separators = [separator] * llama_cpp.llama_vocab_get_add_sep(vocab)
        return PairLayout(tuple(begins), (*ends, *separators), tuple(ends))


def embedder_kind(info: ModelInfo) -> type[LlamaCppEmbedder] | None:
    """Return the class that loads an embedding model or a cross-encoder, or None if the model generates text."""
    if pairs.CAPABILITY in info.capabilities:
        return LlamaCppCrossEncoder
    if embedding.CAPABILITY in info.capabilities:
        return LlamaCppEmbedder
    return None


def _context_params(tokens: int, options: EmbedderOptions, flash_attention: int) -> llama_cpp.llama_context_params:
    params = llama_cpp.llama_context_default_params()
    # Pooling and bidirectional attention need the whole text in one micro-batch; otherwise, llama.cpp aborts.
    params.n_ctx = params.n_batch = params.n_ubatch = tokens
    params.n_seq_max = options.max_texts
    params.kv_unified = True  # a single text may fill the whole context
    params.embeddings = True
    params.pooling_type = options.pooling
    params.n_threads = params.n_threads_batch = options.threads or os.cpu_count() or 1
    params.flash_attn_type = flash_attention
    params.no_perf = True
    return cast("llama_cpp.llama_context_params", params)
