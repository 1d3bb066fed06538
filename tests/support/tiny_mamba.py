"""Writes a GGUF file of a Mamba with random weights: its state stands for all tokens before it."""

from tests.support.random_model import write_random_model

LAYERS = 2
DIMENSIONS = 16
INNER = 32
STATE = 8
KERNEL = 4
STEP_RANK = 4
TOKENS = 128


def _metadata():
    return {
        "general.architecture": "mamba",
        "mamba.context_length": 512,
        "mamba.embedding_length": DIMENSIONS,
        "mamba.block_count": LAYERS,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-6,
        "mamba.ssm.conv_kernel": KERNEL,
        "mamba.ssm.inner_size": INNER,
        "mamba.ssm.state_size": STATE,
        "mamba.ssm.time_step_rank": STEP_RANK,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [f"t{index}" for index in range(TOKENS)],
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.eos_token_id": TOKENS - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def _shapes():
    of_layer = {
        "attn_norm.weight": (DIMENSIONS,),
        "ssm_in.weight": (2 * INNER, DIMENSIONS),
        "ssm_conv1d.weight": (INNER, KERNEL),
        "ssm_conv1d.bias": (INNER,),
        "ssm_x.weight": (STEP_RANK + 2 * STATE, INNER),
        "ssm_dt.weight": (INNER, STEP_RANK),
        "ssm_dt.bias": (INNER,),
        "ssm_a": (INNER, STATE),
        "ssm_d": (INNER,),
        "ssm_out.weight": (DIMENSIONS, INNER),
    }
    shapes = {"token_embd.weight": (TOKENS, DIMENSIONS), "output_norm.weight": (DIMENSIONS,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


def write_tiny_mamba(path):
    """Write the model to `path` and return it."""
    return write_random_model(path, _metadata(), _shapes())
