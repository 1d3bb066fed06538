"""A model's file with weights of 8 bits (Q8_0), made by llama.cpp from a file whose types are slower on a CPU."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from pathlib import Path

import llama_cpp

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.settings import cache_folder
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.llama.weights import forward_logs
from services.inference.adapters.machine import core_count

HASHED_BYTES = 1024 * 1024

log = get_logger(__name__)


def eight_bit_file(path: Path) -> Path:
    """Return the file of the same model with weights of 8 bits, in the cache; it is made if it is missing.

    Its name has the same stem. One of several processes makes it, and the others wait. Raises PreconditionFailed
    (CONFIG_NO_ENGINE) if llama.cpp cannot convert the file, or the cache cannot be written.
    """
    folder = cache_folder() / "models" / _key(path)
    made = folder / path.name
    if made.is_file():
        return made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.is_file():
                _make(path, made)
    except OSError as error:
        raise PreconditionFailed(
            f"{path.name!r} with weights of 8 bits cannot be written to {str(folder)!r} "
            f"({(error.strerror or str(error)).lower()}): set XDG_CACHE_HOME to a folder that has room for it",
            code=ErrorCode.CONFIG_NO_ENGINE,
        ) from None
    return made


def _make(path: Path, made: Path) -> None:
    """Write the file, which appears under its name when it is whole; what an interrupted process left is replaced."""
    log.info("converting weights to 8 bits, once", model=path.name)
    started_s = time.monotonic()
    partial = made.with_name("partial")
    _convert(path, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(made)
    log.info("weights converted", file=str(made), seconds=round(time.monotonic() - started_s, 1))


def _key(path: Path) -> str:
    """Return a name for the result, which differs for each file and version of llama.cpp."""
    with path.open("rb") as file:
        beginning = file.read(HASHED_BYTES)
        file.seek(max(0, path.stat().st_size - HASHED_BYTES))
        end = file.read()
    parts = (llama_cpp.__version__.encode(), str(path.stat().st_size).encode(), beginning, end)
    return "q8_0-" + hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def _convert(path: Path, target: Path) -> None:
    forward_logs()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    params.allow_requantize = True
    params.nthread = core_count()
    if llama_cpp.llama_model_quantize(str(path).encode(), str(target).encode(), params) != 0:
        raise PreconditionFailed(
            f"llama.cpp cannot convert the weights of {str(path)!r}: set PAGANTIC_INFERENCE_WEIGHTS to file",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
