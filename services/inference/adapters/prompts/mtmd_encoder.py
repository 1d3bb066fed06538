"""Implements ImageEncoder with llama.cpp's multimodal library, which receives pixels and never parses image files."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from pagantic_common.domain.errors import ErrorCode, Internal, PreconditionFailed
from services.inference.adapters.llama.weights import forward_log
from services.inference.adapters.openmp import release_threads
from services.inference.core.decoding.images import DecodedImage, Embeddings, ImagePiece

_ADVICE = "use another projector, or leave PROJECTOR_PATH empty"


class MtmdEncoder:
    """The image encoder in a projector file, for a loaded model. Close it before the model is freed.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if the file is not the model's projector, or if the projector's images
    need a kind of decoding that the engine does not support.
    """

    def __init__(self, path: Path, model: llama_cpp.llama_model_p, *, threads: int, uses_gpu: bool) -> None:
        self._library = _load_library()
        self._size = int(llama_cpp.llama_model_n_embd_inp(model))
        params = self._library.mtmd_context_params_default()
        params.use_gpu = uses_gpu
        params.n_threads = threads
        params.print_timings = False
        params.warmup = False
        self._context = self._library.mtmd_init_from_file(str(path).encode(), model, params)
        if not self._context:
            raise _refusal(path, "is no projector of this model: the log says why")
        if problem := self._problem():
            self.close()
            raise _refusal(path, problem)

    def _problem(self) -> str:
        """Return the reason why the projector is unusable, or an empty string if it is usable."""
        if not self._library.mtmd_support_vision(self._context):
            return "encodes no images"
        if self._library.mtmd_decode_use_mrope(self._context):
            return "gives an image positions in two dimensions (M-RoPE), which the engine does not decode"
        if self._library.mtmd_decode_use_non_causal(self._context, None):
            return "needs attention to later positions of an image, which the engine does not decode"
        return ""

    def encode(self, image: DecodedImage, *, only_counts: bool = False) -> tuple[ImagePiece, ...]:
        """Return the pieces of an image. Raises Internal (INFERENCE_ENGINE_ERROR) if the library fails."""
        with self._chunks_of(image) as chunks:
            count = self._library.mtmd_input_chunks_size(chunks)
            parts = (self._library.mtmd_input_chunks_get(chunks, index) for index in range(count))
            return tuple(self._piece(part, only_counts=only_counts) for part in parts)

    @contextmanager
    def _chunks_of(self, image: DecodedImage) -> Iterator[Any]:
        """Yield the library's chunks of an image: its parts, and the tokens around the image or around its parts."""
        library = self._library
        pixels = (ctypes.c_uint8 * len(image.rgb)).from_buffer_copy(image.rgb)
        marker = library.mtmd_default_marker()
        text = library.mtmd_input_text(text=marker, text_len=len(marker), add_special=False, parse_special=True)
        bitmap = library.mtmd_bitmap_init(image.width, image.height, pixels)
        chunks = library.mtmd_input_chunks_init()
        try:
            code = library.mtmd_tokenize(self._context, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1)
            if code != 0:
                raise _failure(f"an image of {image.width} x {image.height} pixels could not be split ({code})")
            yield chunks
        finally:
            library.mtmd_input_chunks_free(chunks)
            library.mtmd_bitmap_free(bitmap)

    def _piece(self, chunk: Any, *, only_counts: bool) -> ImagePiece:
        library = self._library
        if library.mtmd_input_chunk_get_type(chunk) == library.MTMD_INPUT_CHUNK_TYPE_TEXT:
            length = ctypes.c_size_t()
            tokens = library.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(length))
            return ImagePiece(tokens=tuple(tokens[: length.value]))
        positions = int(library.mtmd_input_chunk_get_n_tokens(chunk))
        if only_counts:
            return ImagePiece(positions=positions)
        return ImagePiece(positions=positions, embeddings=self._embeddings(chunk, positions))

    def _embeddings(self, chunk: Any, positions: int) -> Embeddings:
        code = self._library.mtmd_encode_chunk(self._context, chunk)
        release_threads()  # otherwise, this thread's pool would make the threads of the model spin only briefly
        if code:
            raise _failure(f"an image of {positions} positions could not be encoded ({code})")
        output = self._library.mtmd_get_output_embd(self._context)
        embeddings: Embeddings = np.ctypeslib.as_array(output, shape=(positions, self._size)).copy()
        if not np.isfinite(embeddings).all():
            raise _failure("the encoder gave numbers for an image that are not finite")
        return embeddings

    def close(self) -> None:
        """Free the encoder."""
        self._library.mtmd_free(self._context)


def _load_library() -> Any:
    """Load the library by importing its binding, and send its messages to the service's log."""
    try:
        from llama_cpp import mtmd_cpp  # noqa: PLC0415 - a build without the library can serve text
    except (ImportError, OSError, RuntimeError) as error:
        raise PreconditionFailed(
            f"the engine was built without llama.cpp's multimodal library ({error}): run make setup",
            code=ErrorCode.CONFIG_NO_ENGINE,
        ) from None
    mtmd_cpp.mtmd_log_set(forward_log, ctypes.c_void_p(0))
    return mtmd_cpp


def _failure(problem: str) -> Internal:
    return Internal(problem, code=ErrorCode.INFERENCE_ENGINE_ERROR)


def _refusal(path: Path, problem: str) -> PreconditionFailed:
    return PreconditionFailed(f"{str(path)!r} {problem}: {_ADVICE}", code=ErrorCode.CONFIG_NO_ENGINE)
