"""Reads the description of a model from its GGUF file, without its weights."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from glob import escape
from pathlib import Path

import llama_cpp
from llama_cpp._ggml import libggml

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import IMAGES, ModelInfo
from pagantic_common.models.digest import sha256_of
from pagantic_common.models.kinds import CHAT_CAPABILITIES, SCORE_PAIRS, capabilities_of, trained_window
from services.inference.adapters.llama.weights import forward_logs, read_metadata

IDENTIFYING_BYTES = 16 * 1024 * 1024  # per part; most descriptions, including the vocabulary, are smaller
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")  # the engine finds the other parts itself
_HEADS = (b"cls.weight", b"cls.output.weight")  # a classification head has at least one of these tensors


def describe_model(path: Path, *, alias: str, context_tokens: int, projector: Path | None = None) -> ModelInfo:
    """Return a model's description. A model with a projector accepts images.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if llama.cpp does not support the model, if the model neither generates
    text nor computes embeddings nor scores pairs, or if the projector is missing or does not fit the model.
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
        info = _describe(model, path, alias, context_tokens)
    finally:
        llama_cpp.llama_model_free(model)
    parts = parts_of(path)
    info = replace(info, size_bytes=sum(part.stat().st_size for part in parts), digest=identity_of(parts))
    if projector is None:
        return info
    _check_projector(info, projector)
    return replace(info, capabilities=(*info.capabilities, IMAGES))


def _check_projector(info: ModelInfo, projector: Path) -> None:
    problem = ""
    if not projector.is_file():
        problem = "has a projector that is not a file"
    elif info.capabilities != CHAT_CAPABILITIES:
        problem = "takes no conversations, and so no images"
    if problem:
        raise PreconditionFailed(
            f"model {info.name!r} {problem}: correct PROJECTOR_PATH, {str(projector)!r}, or leave it empty",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )


def check_digest(path: Path, *, alias: str, sha256: str) -> None:
    """Raise PreconditionFailed (CONFIG_NO_ENGINE) unless the file's SHA-256, in hexadecimal, is `sha256`.

    Call this before the engine reads the file, because a replaced file could attack the engine's parser.
    """
    if _PART.search(path.name):
        raise PreconditionFailed(
            f"model {alias!r} is split into several files, of which MODEL_SHA256 covers one: join them first",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    try:
        actual = sha256_of(path)
    except OSError as error:
        raise PreconditionFailed(
            f"model {alias!r} is at {str(path)!r}, which cannot be read: {error.strerror}",
            code=ErrorCode.CONFIG_NO_ENGINE,
        ) from None
    if actual != sha256.lower():
        raise PreconditionFailed(
            f"the file of model {alias!r}, {str(path)!r}, has the SHA-256 {actual}, and MODEL_SHA256 says {sha256}",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )


def draft_model_bytes(path: Path) -> int:
    """Return the size of a draft model's file. Raises PreconditionFailed (CONFIG_NO_ENGINE) if it is missing."""
    if not path.is_file():
        raise PreconditionFailed(
            f"DRAFT_MODEL_PATH is {str(path)!r}, which is not a file", code=ErrorCode.CONFIG_NO_ENGINE
        )
    return path.stat().st_size


def digest_of(path: Path) -> str:
    """Return a digest that identifies a model, computed from the hash of its file or from the hashes of its parts."""
    return " ".join(sha256_of(part) for part in parts_of(path))


def identity_of(parts: Sequence[Path]) -> str:
    """Return the SHA-256, in hexadecimal, of the sizes and the beginnings of a model's parts.

    The beginnings contain the model's description and its first weights. Reading a whole large model would take
    minutes, and a service describes its models at every start.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part.stat().st_size}\n".encode())
        with part.open("rb") as file:
            digest.update(file.read(IDENTIFYING_BYTES))
    return digest.hexdigest()


def parts_of(path: Path) -> list[Path]:
    """Return the files of a model, given its file or its first part."""
    part_name = _PART.search(path.name)
    if not part_name:
        return [path]
    beginning, ending = path.name[: part_name.start()], path.name[part_name.end() - len("-00001.gguf") :]
    return sorted(path.parent.glob(f"{escape(beginning)}-?????-of{ending}"))


def _describe(model: llama_cpp.llama_model_p, path: Path, alias: str, context_tokens: int) -> ModelInfo:
    read = partial(read_metadata, model)
    window = min(context_tokens, trained_window(read) or context_tokens)
    capabilities = capabilities_of(read)
    if SCORE_PAIRS in capabilities:
        _check_head(path, alias)
    if not capabilities:
        raise PreconditionFailed(
            f"model {alias!r} cannot generate text, and its file names no pooling to make embeddings with",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    return ModelInfo(alias, window, capabilities)


class _GgufParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _check_head(path: Path, alias: str) -> None:
    """Raise PreconditionFailed if the file lacks a classification head, which the engine would not report."""
    if _PART.search(path.name):
        return  # another part of the model may contain the head
    libggml.gguf_init_from_file.restype = ctypes.c_void_p
    libggml.gguf_init_from_file.argtypes = (ctypes.c_char_p, _GgufParams)
    libggml.gguf_find_tensor.restype = ctypes.c_int64
    libggml.gguf_find_tensor.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    libggml.gguf_free.argtypes = (ctypes.c_void_p,)
    file = libggml.gguf_init_from_file(str(path).encode(), _GgufParams(no_alloc=True))
    try:
        if any(libggml.gguf_find_tensor(file, name) >= 0 for name in _HEADS):
            return
    finally:
        libggml.gguf_free(file)
    raise PreconditionFailed(
        f"model {alias!r} scores pairs of texts (pooling 'rank'), but its file has no classification head: "
        "convert the model together with its head",
        code=ErrorCode.CONFIG_NO_ENGINE,
    )
