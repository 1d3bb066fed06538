"""Writes a GGUF file of a Gemma 3 with random weights: layers with a sliding window, and heads wider than usual."""

from tests.support.random_model import write_random_model

WINDOW = 16  # tokens that most layers see
LAYERS = 6  # The last one sees all tokens.
DIMENSIONS = 32
HEADS = 4
HEAD_DIMENSIONS = 32
FEED_FORWARD = 32
TOKENS = 128


def _metadata():
    tokens = [chr(33 + index) for index in range(94)] + [f"t{index}" for index in range(TOKENS - 94)]
    return {
        "general.architecture": "gemma3",
        "gemma3.context_length": 512,
        "gemma3.embedding_length": DIMENSIONS,
        "gemma3.block_count": LAYERS,
        "gemma3.feed_forward_length": FEED_FORWARD,
        "gemma3.attention.head_count": HEADS,
        "gemma3.attention.head_count_kv": 1,
        "gemma3.attention.key_length": HEAD_DIMENSIONS,
        "gemma3.attention.value_length": HEAD_DIMENSIONS,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.sliding_window": WINDOW,
        "gemma3.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.eos_token_id": TOKENS - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def _shapes():
    heads = HEADS * HEAD_DIMENSIONS
    shapes = {"token_embd.weight": (TOKENS, DIMENSIONS), "output_norm.weight": (DIMENSIONS,)}
    of_layer = {
        "attn_norm": (DIMENSIONS,),
        "attn_q": (heads, DIMENSIONS),
        "attn_k": (HEAD_DIMENSIONS, DIMENSIONS),
        "attn_v": (HEAD_DIMENSIONS, DIMENSIONS),
        "attn_output": (DIMENSIONS, heads),
        "attn_q_norm": (HEAD_DIMENSIONS,),
        "attn_k_norm": (HEAD_DIMENSIONS,),
        "post_attention_norm": (DIMENSIONS,),
        "ffn_norm": (DIMENSIONS,),
        "ffn_gate": (FEED_FORWARD, DIMENSIONS),
        "ffn_up": (FEED_FORWARD, DIMENSIONS),
        "ffn_down": (DIMENSIONS, FEED_FORWARD),
        "post_ffw_norm": (DIMENSIONS,),
    }
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return shapes


def write_tiny_gemma(path, changes=None):
    """Write the model to `path`, with changes of its metadata, and return it."""
    return write_random_model(path, _metadata() | (changes or {}), _shapes())
