"""Loads llama.cpp models, reads their metadata, and logs llama.cpp's messages."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import cast

import llama_cpp

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.openmp import release_threads

log = get_logger(__name__)

# In batches of at least this many tokens, llama.cpp's flash attention for CPUs computes tiles. A long text is slower
# without tiles. Several texts are slower with tiles, because each token visits the cells of all texts in its tile.
TILE_TOKENS = 64
_VALUE_BYTES = 256
_GGML_LOG_LEVEL_WARN = 3
# On x86-64 Linux, these numbers select the system call arch_prctl, its request for permission to use a processor
# feature, and the feature of AMX tile data.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def forward_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    """Log a message from llama.cpp unless its level is below warning."""
    if level >= _GGML_LOG_LEVEL_WARN and (message := text.decode("utf-8", "replace").strip(" .\n")):
        log.debug("llama.cpp", message=message)


def forward_logs() -> None:
    """Send llama.cpp's messages to the service's log instead of stderr."""
    llama_cpp.llama_log_set(forward_log, ctypes.c_void_p(0))


def uses_amx() -> bool:
    """Return whether llama.cpp multiplies with AMX, which the build must contain and the kernel must permit."""
    if b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info():
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def load_model(path: Path, *, gpu_layers: int, use_extra_bufts: bool) -> llama_cpp.llama_model_p:
    """Load a GGUF file. Raises PreconditionFailed (CONFIG_NO_ENGINE) if llama.cpp does not support the model."""
    forward_logs()
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    params.use_extra_bufts = use_extra_bufts
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    release_threads()  # otherwise, the repacking threads would make the threads of all models spin only briefly
    if not model:
        raise PreconditionFailed(
            f"{str(path)!r} cannot be loaded: it is not a GGUF model that this engine knows",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    return cast("llama_cpp.llama_model_p", model)


def read_metadata(model: llama_cpp.llama_model_p, key: str) -> str:
    """Return a metadata value of a model's file as text, or an empty string if the key is missing."""
    buffer = ctypes.create_string_buffer(_VALUE_BYTES)
    length = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, _VALUE_BYTES)
    if length < 0:
        return ""
    return buffer.value.decode("utf-8", "replace")
