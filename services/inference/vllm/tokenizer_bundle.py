"""Packs the files of a model's tokenizer for gateways that tokenize prompts."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from smg_grpc_proto.generated import common_pb2

from pagantic_common.domain.errors import InvalidRequest

TOKENIZER = "tokenizer.json"
MAX_FILE_BYTES = 64 * 1024 * 1024
_OTHERS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
_CHUNK_BYTES = 64 * 1024
_SETTING = "PAGANTIC_INFERENCE_VLLM_TOKENIZER_FOLDER"


def bundle_tokenizer(folder: Path) -> bytes:
    """Return a zip archive of the tokenizer's files in a folder. The same files always produce the same bytes.

    Raises InvalidRequest if the folder has no tokenizer.json, or if a file is unreadable or too large.
    """
    if not (folder / TOKENIZER).is_file():
        raise InvalidRequest(f"{_SETTING} is {str(folder)!r}, which has no {TOKENIZER}: name the folder of one")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (TOKENIZER, *_OTHERS):
            if (folder / name).is_file():
                # Constant dates make the archive reproducible.
                archive.writestr(zipfile.ZipInfo(name), _read(folder / name), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def chunks_of(bundle: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """Yield the pieces of a non-empty bundle. The last piece has the SHA-256 of the bundle."""
    for start in range(0, len(bundle), _CHUNK_BYTES):
        end = start + _CHUNK_BYTES
        sha256 = ""
        if end >= len(bundle):
            sha256 = hashlib.sha256(bundle).hexdigest()
        yield common_pb2.GetTokenizerChunk(data=bundle[start:end], sha256=sha256)


def _read(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise InvalidRequest(f"{str(file)!r} of {_SETTING} has {size} bytes, the limit is {MAX_FILE_BYTES}")
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{str(file)!r} of {_SETTING} cannot be read: {error.strerror or error}") from None
