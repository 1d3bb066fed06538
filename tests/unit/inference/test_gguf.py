"""The GGUF writer, held against a reader of the format that shares no code with it."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from services.inference.core.gguf import gguf_parts

ALIGNMENT = 32
KEYS = st.text(min_size=1, max_size=12)
TEXTS = st.text(max_size=12)
VALUES = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=5),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
)
TENSORS = st.sampled_from([np.float16, np.float32, np.uint16]).flatmap(
    lambda kind: arrays.arrays(kind, arrays.array_shapes(max_dims=3, max_side=5))
)


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def text(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, count = self.take("IQ")
            return [self.value(kind) for _ in range(count)]
        return self.take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    def tensor_info(self):
        name, dimensions = self.text(), self.take("I")
        shape = [self.take("Q") for _ in range(dimensions)]
        kind, offset = self.take("IQ")
        return name, shape[::-1], {0: "<f4", 1: "<f2", 30: "<u2"}[kind], offset


def read(data):
    reader = Reader(data)
    magic, version, tensor_count, value_count = reader.take("4sIQQ")
    assert (magic, version) == (b"GGUF", 3)
    metadata = {reader.text(): reader.value(reader.take("I")) for _ in range(value_count)}
    infos = [reader.tensor_info() for _ in range(tensor_count)]
    start = -(-reader.at // ALIGNMENT) * ALIGNMENT
    tensors = {}
    for name, shape, kind, offset in infos:
        assert offset % ALIGNMENT == 0
        count = int(np.prod(shape))
        tensors[name] = np.frombuffer(data, kind, count, start + offset).reshape(shape)
    return metadata, tensors


@given(metadata=st.dictionaries(KEYS, VALUES, max_size=6), tensors=st.dictionaries(KEYS, TENSORS, max_size=4))
def test_a_file_holds_what_was_written(metadata, tensors):
    data = b"".join(gguf_parts(metadata, tensors))
    assert len(data) % ALIGNMENT == 0
    found_metadata, found_tensors = read(data)
    assert found_metadata == metadata
    assert list(found_metadata) == list(metadata)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found_tensors.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()
    }
    assert all(found_tensors[name].tobytes() == tensor.tobytes() for name, tensor in tensors.items())
