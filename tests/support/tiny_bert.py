"""Writes a GGUF file of a BERT with random weights: small enough for a test, and an encoder like the real ones."""

import struct

import numpy as np

WINDOW = 32
DIMENSIONS = 16
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581red", "\u2581green", "\u2581blue", "\u2581car", "s")
MEAN, CLS, LAST, RANK = 1, 2, 3, 4

_LAYERS = 2
_FEED_FORWARD = 32
_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
_INT32 = 5


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
        case _:
            return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)


def _metadata(pooling):
    control, normal = 3, 1
    pooled = {} if pooling is None else {"bert.pooling_type": pooling}
    return pooled | {
        "general.architecture": "bert",
        "bert.context_length": WINDOW,
        "bert.embedding_length": DIMENSIONS,
        "bert.block_count": _LAYERS,
        "bert.feed_forward_length": _FEED_FORWARD,
        "bert.attention.head_count": 2,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": list(WORDS),
        "tokenizer.ggml.token_type": [control if word.startswith("[") else normal for word in WORDS],
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,  # spelt so by the format
    }


def _shapes(pooling):
    shapes = {
        "token_embd.weight": (len(WORDS), DIMENSIONS),
        "token_types.weight": (2, DIMENSIONS),
        "position_embd.weight": (WINDOW, DIMENSIONS),
        "token_embd_norm.weight": (DIMENSIONS,),
        "token_embd_norm.bias": (DIMENSIONS,),
    }
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
            wide = _FEED_FORWARD
            rows, columns = {"ffn_up": (wide, DIMENSIONS), "ffn_down": (DIMENSIONS, wide)}.get(name, (DIMENSIONS,) * 2)
            shapes |= {f"blk.{layer}.{name}.weight": (rows, columns), f"blk.{layer}.{name}.bias": (rows,)}
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes |= {f"blk.{layer}.{name}.weight": (DIMENSIONS,), f"blk.{layer}.{name}.bias": (DIMENSIONS,)}
    if pooling == RANK:
        shapes |= {"cls.output.weight": (1, DIMENSIONS), "cls.output.bias": (1,)}
    return shapes


def write_tiny_bert(path, *, pooling=MEAN):
    """Write the model to `path` and return it; `pooling` None leaves it out of the file."""
    random = np.random.default_rng(7)
    metadata, shapes = _metadata(pooling), _shapes(pooling)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(shapes), len(metadata))]
    head += [_string(key) + _value(value) for key, value in metadata.items()]
    body, offset = [], 0
    for name, shape in shapes.items():
        data = random.normal(1.0 if name.endswith("norm.weight") else 0.0, 0.3, shape).astype(np.float32).tobytes()
        head.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, offset))
        body.append(data + bytes(-len(data) % _ALIGNMENT))
        offset += len(body[-1])
    start = b"".join(head)
    path.write_bytes(start + bytes(-len(start) % _ALIGNMENT) + b"".join(body))
    return path
