"""Reads the description of a model from its GGUF file, without its weights."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import llama_cpp

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.default_model import sha256_of
from services.inference.adapters.llama_cpp_model import forward_logs
from services.inference.core.embedding import CAPABILITY

CHAT_CAPABILITIES = ("chat", "tools", "json_schema", "gbnf")
TEXT_CAPABILITIES = ("json_schema", "gbnf")
EMBEDDING_CAPABILITIES = (CAPABILITY,)
_VALUE_BYTES = 256
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")  # the engine finds the other parts by itself
_NO_POOLING = ("", str(llama_cpp.LLAMA_POOLING_TYPE_NONE))
_RANK_POOLING = str(llama_cpp.LLAMA_POOLING_TYPE_RANK)


def describe_model(path: Path, *, alias: str, context_tokens: int) -> ModelInfo:
    """Return a model's description.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if llama.cpp does not know the model, or if it neither generates text
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
        return _describe(model, alias, context_tokens)
    finally:
        llama_cpp.llama_model_free(model)


def check_digest(path: Path, *, alias: str, sha256: str) -> None:
    """Raise PreconditionFailed (CONFIG_NO_ENGINE) unless the file has this SHA-256, in hexadecimal.

    The engine must not have read the file before: a file that somebody replaced may aim at its parser.
    """
    if _PART.search(path.name):
        raise PreconditionFailed(
            f"model {alias!r} is split into several files, of which MODEL_SHA256 covers one: join them first",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    try:
        found = sha256_of(path)
    except OSError as error:
        raise PreconditionFailed(
            f"model {alias!r} is at {str(path)!r}, which cannot be read: {error.strerror}",
            code=ErrorCode.CONFIG_NO_ENGINE,
        ) from None
    if found != sha256.lower():
        raise PreconditionFailed(
            f"the file of model {alias!r}, {str(path)!r}, has the SHA-256 {found}, and MODEL_SHA256 says {sha256}",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )


def _describe(model: llama_cpp.llama_model_p, alias: str, context_tokens: int) -> ModelInfo:
    architecture = _metadata(model, "general.architecture")
    pooling = _metadata(model, f"{architecture}.pooling_type")
    window = context_tokens
    trained = _metadata(model, f"{architecture}.context_length")
    if trained.isdigit():
        window = min(context_tokens, int(trained))
    if pooling == _RANK_POOLING:
        raise PreconditionFailed(
            f"model {alias!r} ranks pairs of texts (pooling 'rank'), and makes no embeddings",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    if pooling not in _NO_POOLING:
        return ModelInfo(alias, window, EMBEDDING_CAPABILITIES)
    if _metadata(model, f"{architecture}.attention.causal") == "false":
        raise PreconditionFailed(
            f"model {alias!r} cannot generate text, and its file names no pooling to make embeddings with",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    if llama_cpp.llama_model_chat_template(model, None):
        return ModelInfo(alias, window, CHAT_CAPABILITIES)
    return ModelInfo(alias, window, TEXT_CAPABILITIES)


def _metadata(model: llama_cpp.llama_model_p, key: str) -> str:
    buffer = ctypes.create_string_buffer(_VALUE_BYTES)
    length = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, _VALUE_BYTES)
    if length < 0:
        return ""
    return buffer.value.decode("utf-8", "replace")
