"""Writes a GGUF file of a cross-encoder: the bundled BERT with a classification head of random weights.

No package brings a cross-encoder. This one scores nothing of use, but has the size and the form of a real one.
"""

import numpy as np

from services.inference.adapters.conversion import EPSILON, HEADS, VOCABULARY, WEIGHTS
from services.inference.core.bert import bert_metadata, bert_tensors, read_safetensors
from services.inference.core.gguf import gguf_parts
from tests.support.tiny_bert import RANK

WIDTH = 384
# What converters write for a tokenizer that joins a pair as [CLS] A [SEP] B [SEP].
SPECIAL_TOKENS = {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_sep_token": False}


def cross_encoder_tensors():
    """Return the tensors under the engine's names."""
    weights = read_safetensors(np.memmap(WEIGHTS.find(otherwise=""), np.uint8, mode="r"))
    random = np.random.default_rng(11)
    shapes = {
        "cls.weight": (WIDTH, WIDTH),
        "cls.bias": (WIDTH,),
        "cls.output.weight": (1, WIDTH),
        "cls.output.bias": (1,),
    }
    head = {name: random.normal(0.0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    return bert_tensors(weights) | head


def write_cross_encoder(path):
    """Write the model to `path` and return its tensors."""
    tensors = cross_encoder_tensors()
    vocabulary = VOCABULARY.find(otherwise="").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    metadata = bert_metadata("cross-encoder", tensors, vocabulary, heads=HEADS, epsilon=EPSILON)
    metadata |= {"bert.pooling_type": RANK} | SPECIAL_TOKENS
    path.write_bytes(b"".join(gguf_parts(metadata, tensors)))
    return tensors
