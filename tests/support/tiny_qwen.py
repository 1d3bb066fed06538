"""Writes a GGUF file of a Qwen3 reranker with random weights: a decoder with the outputs yes and no, and a template."""

from tests.support.random_model import write_random_model
from tests.support.tiny_bert import RANK

WINDOW = 64
DIMENSIONS = 16
HEAD_DIMENSIONS = 8
FEED_FORWARD = 32
END = "<|im_end|>"
END_ID = 257
TEMPLATE = f"q: {{query}} d: {{document}}{END}"
CONTROL, NORMAL = 3, 1


def _tokens():
    """Return a token for each byte, as the engine spells it, one for a space before an a, and the end."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    spelt = {byte: chr(byte) for byte in printed} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [spelt[byte] for byte in range(256)] + [spelt[ord(" ")] + "a", END]


def _metadata():
    tokens = _tokens()
    return {
        "general.architecture": "qwen3",
        "qwen3.context_length": WINDOW,
        "qwen3.embedding_length": DIMENSIONS,
        "qwen3.block_count": 1,
        "qwen3.feed_forward_length": FEED_FORWARD,
        "qwen3.attention.head_count": 2,
        "qwen3.attention.head_count_kv": 1,
        "qwen3.attention.key_length": HEAD_DIMENSIONS,
        "qwen3.attention.value_length": HEAD_DIMENSIONS,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 10000.0,
        "qwen3.pooling_type": RANK,
        "qwen3.classifier.output_labels": ["yes", "no"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token == END else NORMAL for token in tokens],
        "tokenizer.ggml.merges": [f"{tokens[32]} {tokens[97]}"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template.rerank": TEMPLATE,
    }


def _shapes():
    heads = 2 * HEAD_DIMENSIONS
    return {
        "token_embd.weight": (len(_tokens()), DIMENSIONS),
        "output_norm.weight": (DIMENSIONS,),
        "blk.0.attn_norm.weight": (DIMENSIONS,),
        "blk.0.attn_q.weight": (heads, DIMENSIONS),
        "blk.0.attn_k.weight": (HEAD_DIMENSIONS, DIMENSIONS),
        "blk.0.attn_v.weight": (HEAD_DIMENSIONS, DIMENSIONS),
        "blk.0.attn_output.weight": (DIMENSIONS, heads),
        "blk.0.attn_q_norm.weight": (HEAD_DIMENSIONS,),
        "blk.0.attn_k_norm.weight": (HEAD_DIMENSIONS,),
        "blk.0.ffn_norm.weight": (DIMENSIONS,),
        "blk.0.ffn_gate.weight": (FEED_FORWARD, DIMENSIONS),
        "blk.0.ffn_up.weight": (FEED_FORWARD, DIMENSIONS),
        "blk.0.ffn_down.weight": (DIMENSIONS, FEED_FORWARD),
        "cls.output.weight": (2, DIMENSIONS),
    }


def write_tiny_qwen(path):
    """Write the model to `path` and return it."""
    return write_random_model(path, _metadata(), _shapes())
