"""Writes a GGUF file of a Qwen2-VL with random weights: a decoder whose positions have several dimensions (M-RoPE)."""

from tests.support.random_model import write_random_model

DIMENSIONS = 32
_TOKENS = [chr(33 + index) for index in range(94)]


def write_tiny_qwen_vl(path):
    """Write the model to `path` and return it."""
    metadata = {
        "general.architecture": "qwen2vl",
        "qwen2vl.context_length": 64,
        "qwen2vl.embedding_length": DIMENSIONS,
        "qwen2vl.block_count": 1,
        "qwen2vl.feed_forward_length": DIMENSIONS,
        "qwen2vl.attention.head_count": 2,
        "qwen2vl.attention.head_count_kv": 2,
        "qwen2vl.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen2vl.rope.freq_base": 10000.0,
        "qwen2vl.rope.dimension_sections": [4, 2, 2, 0],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.merges": ["! #"],
        "tokenizer.ggml.eos_token_id": len(_TOKENS) - 1,
    }
    square, vector = (DIMENSIONS, DIMENSIONS), (DIMENSIONS,)
    shapes = {"token_embd.weight": (len(_TOKENS), DIMENSIONS), "output_norm.weight": vector}
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes |= {f"blk.0.{name}.weight": square for name in names}
    shapes |= {f"blk.0.{name}.bias": vector for name in ("attn_q", "attn_k", "attn_v")}
    shapes |= {f"blk.0.{name}.weight": vector for name in ("attn_norm", "ffn_norm")}
    return write_random_model(path, metadata, shapes)
