"""Reads the weights of a BERT model for sentence embeddings, and converts them to the tensors of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from services.inference.core.gguf import Tensor, Value

_FLOAT32 = "F32"
_CONTROL, _NORMAL = 3, 1  # types of tokens
_MEAN_POOLING = 1
# The type of most matrices determines the file type in the metadata.
_FILE_TYPES = {"float16": 1, "uint16": 32}
_CONTINUATION = "##"
_WORD_START = "\u2581"
_SPECIAL_TOKENS = {
    "[UNK]": "unknown",
    "[SEP]": "seperator",  # the format spells it this way
    "[PAD]": "padding",
    "[CLS]": "cls",
    "[MASK]": "mask",
}
_EMBEDDINGS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER_PARTS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_TOKENS = "token_embd.weight"
_FLOAT32_MATRICES = (
    "token_types.weight",
    "position_embd.weight",
)  # the engine adds these tensors to other values without conversion

Weights = NDArray[np.float32]
MatrixType = Literal["float16", "bfloat16"]


def read_safetensors(data: NDArray[np.uint8]) -> dict[str, Weights]:
    """Return the 32-bit tensors of a safetensors file by name, as views of its bytes."""
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    return {
        name: data[start + info["data_offsets"][0] : start + info["data_offsets"][1]].view("<f4").reshape(info["shape"])
        for name, info in header.items()
        if info.get("dtype") == _FLOAT32
    }


def bert_tensors(weights: Mapping[str, Weights], matrices: MatrixType = "float16") -> dict[str, Tensor]:
    """Return the needed tensors under the engine's names. Matrices have 16 bits per number, vectors 32.

    Token vectors are always float16, because the engine looks them up and never multiplies by them.
    """
    named = {_tensor_name(name): tensor for name, tensor in weights.items()}
    return {name: _narrowed(name, tensor, matrices) for name, tensor in named.items() if name}


def bert_metadata(
    name: str, tensors: Mapping[str, Tensor], vocabulary: Sequence[str], *, heads: int, epsilon: float
) -> dict[str, Value]:
    """Return the metadata of a model with mean pooling.

    Args:
        name: The model's name.
        tensors: The model's tensors under the engine's names.
        vocabulary: The WordPiece tokens in the order of their ids.
        heads: The number of attention heads in a layer.
        epsilon: The constant that layer normalization adds to a variance.
    """
    special = {f"tokenizer.ggml.{role}_token_id": vocabulary.index(token) for token, role in _SPECIAL_TOKENS.items()}
    return {
        "general.architecture": "bert",
        "general.name": name,
        "general.file_type": _FILE_TYPES[tensors["blk.0.ffn_up.weight"].dtype.name],
        "bert.block_count": sum(tensor.endswith("attn_q.weight") for tensor in tensors),
        "bert.context_length": tensors["position_embd.weight"].shape[0],
        "bert.embedding_length": tensors["token_embd.weight"].shape[1],
        "bert.feed_forward_length": tensors["blk.0.ffn_up.weight"].shape[0],
        "bert.attention.head_count": heads,
        "bert.attention.layer_norm_epsilon": epsilon,
        "bert.attention.causal": False,
        "bert.pooling_type": _MEAN_POOLING,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": tensors["token_types.weight"].shape[0],
        "tokenizer.ggml.tokens": [_engine_token(token) for token in vocabulary],
        "tokenizer.ggml.token_type": [_CONTROL if token in _SPECIAL_TOKENS else _NORMAL for token in vocabulary],
        "tokenizer.ggml.bos_token_id": vocabulary.index("[CLS]"),
        **special,
    }


def _tensor_name(name: str) -> str:
    """Return the engine's name for a tensor, or an empty string if embeddings do not need the tensor."""
    module, _, kind = name.rpartition(".")
    if module in _EMBEDDINGS:
        return f"{_EMBEDDINGS[module]}.{kind}"
    if not module.startswith("encoder.layer."):
        return ""
    layer, _, part = module.removeprefix("encoder.layer.").partition(".")
    return f"blk.{layer}.{_LAYER_PARTS[part]}.{kind}"


def _narrowed(name: str, tensor: Weights, matrices: MatrixType) -> Tensor:
    if tensor.ndim == 1 or name in _FLOAT32_MATRICES:
        return tensor
    if matrices == "float16" or name == _TOKENS:
        return tensor.astype(np.float16)
    return _bfloat16(tensor)


def _bfloat16(tensor: Weights) -> NDArray[np.uint16]:
    """Return the bits of the finite numbers as bfloat16, rounded to nearest with ties to even."""
    bits = tensor.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _engine_token(token: str) -> str:
    """Return a token in the engine's form, which marks the start of a word rather than its continuation."""
    if token in _SPECIAL_TOKENS:
        return token
    if token.startswith(_CONTINUATION):
        return token.removeprefix(_CONTINUATION)
    return _WORD_START + token
