"""The layout of a BERT: its names, its types, and the spelling of its vocabulary."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.core.bert import bert_metadata, bert_tensors, read_safetensors

VOCABULARY = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", "red", "##s"]
WIDTH, WIDE, WINDOW, LAYERS = 4, 6, 8, 2


def weights():
    attention = [f"attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense")]
    shapes = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": (WINDOW, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "pooler.dense.weight": (WIDTH, WIDTH),
    }
    for layer in range(LAYERS):
        shapes |= {f"encoder.layer.{layer}.{part}.weight": (WIDTH, WIDTH) for part in attention}
        shapes |= {f"encoder.layer.{layer}.{part}.bias": (WIDTH,) for part in attention}
        shapes[f"encoder.layer.{layer}.intermediate.dense.weight"] = (WIDE, WIDTH)
        shapes[f"encoder.layer.{layer}.output.dense.weight"] = (WIDTH, WIDE)
        shapes[f"encoder.layer.{layer}.attention.output.LayerNorm.bias"] = (WIDTH,)
        shapes[f"encoder.layer.{layer}.output.LayerNorm.bias"] = (WIDTH,)
    random = np.random.default_rng(3)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors(tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        kind = {"float32": "F32", "int64": "I64"}[tensor.dtype.name]
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    encoded = json.dumps(header).encode()
    return np.frombuffer(struct.pack("<Q", len(encoded)) + encoded + data, np.uint8)


def bfloat16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def test_weights_are_read_from_safetensors_and_indexes_are_left_out():
    written = weights()
    read = read_safetensors(safetensors(written | {"embeddings.position_ids": np.arange(WINDOW)[None]}))
    assert read.keys() == written.keys()
    assert all((read[name] == tensor).all() for name, tensor in written.items())


def test_tensors_have_the_engines_names_and_the_pooler_is_left_out():
    tensors = bert_tensors(weights())
    per_layer = ("attn_q.weight", "attn_k.bias", "attn_v.weight", "attn_output.bias", "attn_output_norm.bias")
    per_layer += ("ffn_up.weight", "ffn_down.weight", "layer_output_norm.bias")
    assert {f"blk.{layer}.{name}" for layer in range(LAYERS) for name in per_layer} < tensors.keys()
    assert {name for name in tensors if not name.startswith("blk.")} == {
        "token_embd.weight",
        "position_embd.weight",
        "token_types.weight",
        "token_embd_norm.weight",
    }
    assert tensors["blk.1.ffn_up.weight"].shape == (WIDE, WIDTH)


def test_matrices_are_narrowed_and_what_is_added_to_values_is_not():
    written = weights()
    tensors = bert_tensors(written)
    narrow = {name for name, tensor in tensors.items() if tensor.dtype == np.float16}
    assert "token_embd.weight" in narrow
    assert "blk.0.attn_q.weight" in narrow
    assert not narrow & {"position_embd.weight", "token_types.weight", "token_embd_norm.weight", "blk.0.attn_q.bias"}
    query = written["encoder.layer.0.attention.self.query.weight"]
    assert tensors["blk.0.attn_q.weight"].astype(np.float32) == pytest.approx(query, rel=2**-11)


@given(st.floats(width=32, min_value=-(2.0**99), max_value=2.0**99, allow_subnormal=False))
def test_a_matrix_of_bfloat16_has_the_nearest_numbers(number):
    written = weights()
    written["encoder.layer.0.attention.self.query.weight"][1, 2] = number
    tensors = bert_tensors(written, "bfloat16")
    assert tensors["token_embd.weight"].dtype == np.float16
    assert tensors["blk.0.attn_q.bias"].dtype == np.float32
    bits = int(tensors["blk.0.attn_q.weight"][1, 2])
    # The neighbours of a number count only if they have its sign.
    near = [one for one in (bits - 1, bits, bits + 1) if one & 0x8000 == bits & 0x8000]
    errors = {one: abs(bfloat16(one) - number) for one in near}
    assert errors[bits] == min(errors.values())
    # Where two numbers are equally near, the even one is taken.
    assert bits % 2 == 0 or list(errors.values()).count(errors[bits]) == 1


@pytest.mark.parametrize(("matrices", "file_type"), [("float16", 1), ("bfloat16", 32)])
def test_the_file_says_the_type_of_its_matrices(matrices, file_type):
    metadata = bert_metadata("m", bert_tensors(weights(), matrices), VOCABULARY, heads=2, epsilon=1e-12)
    assert metadata["general.file_type"] == file_type


def test_metadata_gives_the_sizes_of_the_tensors_and_the_pooling():
    metadata = bert_metadata("m", bert_tensors(weights()), VOCABULARY, heads=2, epsilon=1e-12)
    sizes = ("block_count", "context_length", "embedding_length", "feed_forward_length")
    assert [metadata[f"bert.{size}"] for size in sizes] == [LAYERS, WINDOW, WIDTH, WIDE]
    assert metadata["bert.attention.head_count"] == 2
    assert metadata["bert.attention.layer_norm_epsilon"] == 1e-12
    assert metadata["bert.attention.causal"] is False
    assert metadata["bert.pooling_type"] == 1  # the mean
    assert metadata["tokenizer.ggml.token_type_count"] == 2


def test_starts_of_words_are_marked_and_special_tokens_are_control_tokens():
    metadata = bert_metadata("m", bert_tensors(weights()), VOCABULARY, heads=2, epsilon=1e-12)
    start = "\u2581"
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert metadata["tokenizer.ggml.tokens"] == [
        *("[PAD]", f"{start}[unused0]", *special),
        *(f"{start}!", f"{start}red", "s"),
    ]
    assert metadata["tokenizer.ggml.token_type"] == [3, 1, 3, 3, 3, 3, 1, 1, 1]
    ids = {role: metadata[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "cls", "seperator", "padding", "mask")}
    assert ids == {"bos": 3, "cls": 3, "seperator": 4, "padding": 0, "mask": 5}
    assert metadata["tokenizer.ggml.unknown_token_id"] == 2
