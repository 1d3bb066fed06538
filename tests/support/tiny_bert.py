"""Writes a GGUF file of a BERT with random weights: small enough for a test, and an encoder like the real ones."""

import numpy as np

from services.inference.core.gguf import gguf_parts

WINDOW = 32
DIMENSIONS = 16
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581red", "\u2581green", "\u2581blue", "\u2581car", "s")
MEAN, CLS, LAST, RANK = 1, 2, 3, 4

_LAYERS = 2
_FEED_FORWARD = 32


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


def _shapes(outputs):
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
    if outputs:
        shapes |= {"cls.output.weight": (outputs, DIMENSIONS), "cls.output.bias": (outputs,)}
    return shapes


def write_tiny_bert(path, *, pooling=MEAN, has_head=True, labels=(), metadata=None):
    """Write the model to `path` and return it; `pooling` None leaves it out of the file.

    A model of pooling RANK has a head of an output for each of the labels, or of a single one without labels.
    """
    outputs = (len(labels) or 1) if pooling == RANK and has_head else 0
    named = {"bert.classifier.output_labels": list(labels)} if labels else {}
    random = np.random.default_rng(7)
    tensors = {
        name: random.normal(1.0 if name.endswith("norm.weight") else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in _shapes(outputs).items()
    }
    path.write_bytes(b"".join(gguf_parts(_metadata(pooling) | named | (metadata or {}), tensors)))
    return path
