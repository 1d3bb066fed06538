"""Writes the metadata and tensors of a model in version 3 of the GGUF format, which the engine reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Value = bool | int | float | str | Sequence[str] | Sequence[int] | Sequence[float]
# An array of uint16 holds the bits of bfloat16, which numpy does not have.
Tensor = NDArray[np.float16] | NDArray[np.float32] | NDArray[np.uint16]

_VERSION = 3
_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_TYPES = {"float32": 0, "float16": 1, "uint16": 30}


def gguf_parts(metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """Yield the header of a file and then the data of each tensor.

    All elements of a sequence in the metadata have one type. Numbers have 32 bits.
    """
    header = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    header += [_text(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for name, tensor in tensors.items():
        header.append(_text(name) + _tensor_info(tensor, offset))
        offset += tensor.nbytes + _padding(tensor.nbytes)
    yield _padded(b"".join(header))
    for tensor in tensors.values():
        yield _padded(tensor.astype(tensor.dtype.newbyteorder("<")).tobytes())


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _text(value)
        case _:
            return _array(value)


def _array(values: Sequence[str] | Sequence[int] | Sequence[float]) -> bytes:
    match values:
        case [str(), *_]:
            return struct.pack("<IIQ", _ARRAY, _STRING, len(values)) + b"".join(map(_text, values))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(values)}f", _ARRAY, _FLOAT32, len(values), *values)
        case _:
            return struct.pack(f"<IIQ{len(values)}i", _ARRAY, _INT32, len(values), *values)


def _text(text: object) -> bytes:
    data = str(text).encode()
    return struct.pack("<Q", len(data)) + data


def _tensor_info(tensor: Tensor, offset: int) -> bytes:
    """Return the description of a tensor. The format lists the dimensions from the innermost to the outermost."""
    shape = tensor.shape[::-1]
    return struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _TENSOR_TYPES[tensor.dtype.name], offset)


def _padded(data: bytes) -> bytes:
    return data + bytes(_padding(len(data)))


def _padding(size: int) -> int:
    return -size % _ALIGNMENT
