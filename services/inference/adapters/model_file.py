"""What a GGUF file says of itself, read without its weights."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.llama_cpp_model import forward_logs
from services.inference.core.embedding import CAPABILITY

CHAT_CAPABILITIES = ("chat", "tools", "json_schema", "gbnf")
TEXT_CAPABILITIES = ("json_schema", "gbnf")
EMBEDDING_CAPABILITIES = (CAPABILITY,)
_VALUE_BYTES = 256
_NO_POOLING = ("", str(llama_cpp.LLAMA_POOLING_TYPE_NONE))
_RANK_POOLING = str(llama_cpp.LLAMA_POOLING_TYPE_RANK)


def describe_model(path: Path, *, alias: str, context_tokens: int) -> ModelInfo:
    """Return a model's description.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) when the file is none that llama.cpp knows, or neither generates text
    nor makes embeddings.
    """
    if not path.is_file():
        raise PreconditionFailed(
            f"model {alias!r} is at {str(path)!r}, which is not a file", code=ErrorCode.CONFIG_NO_ENGINE
        )
    forward_logs()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise PreconditionFailed(
            f"{str(path)!r} cannot be loaded: it is not a GGUF model that this engine knows",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    try:
        architecture = _metadata(model, "general.architecture")
        pooling = _metadata(model, f"{architecture}.pooling_type")
        is_embedding = pooling not in _NO_POOLING
        if pooling == _RANK_POOLING:
            raise PreconditionFailed(
                f"model {alias!r} ranks pairs of texts (pooling 'rank'), and makes no embeddings",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        if not is_embedding and _metadata(model, f"{architecture}.attention.causal") == "false":
            raise PreconditionFailed(
                f"model {alias!r} cannot generate text, and its file names no pooling to make embeddings with",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )
        trained = _metadata(model, f"{architecture}.context_length")
        capabilities: tuple[str, ...] = EMBEDDING_CAPABILITIES if is_embedding else TEXT_CAPABILITIES
        if not is_embedding and llama_cpp.llama_model_chat_template(model, None):
            capabilities = CHAT_CAPABILITIES
    finally:
        llama_cpp.llama_model_free(model)
    window = min(context_tokens, int(trained)) if trained.isdigit() else context_tokens
    return ModelInfo(name=alias, context_window=window, capabilities=capabilities)


def _metadata(model: llama_cpp.llama_model_p, key: str) -> str:
    buffer = ctypes.create_string_buffer(_VALUE_BYTES)
    length = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, _VALUE_BYTES)
    return buffer.value.decode("utf-8", "replace") if length >= 0 else ""
