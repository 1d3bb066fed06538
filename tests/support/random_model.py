"""Writes a GGUF file of a model with random weights."""

import numpy as np

from services.inference.core.gguf import gguf_parts


def write_random_model(path, metadata, shapes):
    """Write a model to `path` and return it; norms are about 1, other weights about 0."""
    random = np.random.default_rng(5)
    tensors = {
        name: random.normal(1.0 if name.endswith("norm.weight") else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    path.write_bytes(b"".join(gguf_parts(metadata, tensors)))
    return path
