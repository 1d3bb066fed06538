"""Writes a GGUF file of an image encoder with random weights, as LLaVA's: its images are a few tokens of a model."""

from tests.support.random_model import write_random_model

SMOLLM2_DIMENSIONS = 576
IMAGE_TOKENS = 16
_SIDE, _PATCH = 28, 7
_DIMENSIONS, _FEED_FORWARD, _LAYERS = 32, 64, 3  # the last layer is not used
_OF_KIND = {"gemma3": {"mm.input_projection.weight": (32, 32), "mm.soft_emb_norm.weight": (32,)}}


def write_tiny_projector(path, *, dimensions=SMOLLM2_DIMENSIONS, kind="mlp"):
    """Write an encoder to `path`, for a model of so many dimensions, and return it."""
    metadata = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        "clip.use_gelu": True,
        "clip.vision.image_size": _SIDE,
        "clip.vision.patch_size": _PATCH,
        "clip.vision.embedding_length": _DIMENSIONS,
        "clip.vision.feed_forward_length": _FEED_FORWARD,
        "clip.vision.block_count": _LAYERS,
        "clip.vision.projection_dim": dimensions,
        "clip.vision.attention.head_count": 2,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }
    shapes = dict(_OF_KIND.get(kind, {})) | {
        "v.patch_embd.weight": (_DIMENSIONS, 3, _PATCH, _PATCH),
        "v.position_embd.weight": (IMAGE_TOKENS, _DIMENSIONS),
        "mm.0.weight": (_DIMENSIONS, _DIMENSIONS),
        "mm.0.bias": (_DIMENSIONS,),
        "mm.2.weight": (dimensions, _DIMENSIONS),
        "mm.2.bias": (dimensions,),
    }
    of_layer = {
        "ln1": (_DIMENSIONS,),
        "ln2": (_DIMENSIONS,),
        "attn_q": (_DIMENSIONS, _DIMENSIONS),
        "attn_k": (_DIMENSIONS, _DIMENSIONS),
        "attn_v": (_DIMENSIONS, _DIMENSIONS),
        "attn_out": (_DIMENSIONS, _DIMENSIONS),
        "ffn_up": (_FEED_FORWARD, _DIMENSIONS),
        "ffn_down": (_DIMENSIONS, _FEED_FORWARD),
    }
    for layer in range(_LAYERS):
        for name, shape in of_layer.items():
            shapes[f"v.blk.{layer}.{name}.weight"] = shape
            shapes[f"v.blk.{layer}.{name}.bias"] = shape[:1]
    return write_random_model(path, metadata, shapes)
