"""Writes a BERT as an ONNX file, of onnxruntime's own fused operators. Runs where the packages of the peer are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

# The operators of onnxruntime are in this domain.
FUSED = "com.microsoft"
VERSION = 17


class Graph:
    """The nodes and weights of a BERT whose tensors have llama.cpp's names."""

    def __init__(self, tensors: Mapping[str, NDArray], *, heads: int, epsilon: float) -> None:
        self._tensors = tensors
        self._heads = heads
        self._epsilon = epsilon
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._states = self._embedded()
        layers = sum(name.endswith("attn_q.weight") for name in tensors)
        for layer in range(layers):
            self._add_layer(f"blk.{layer}")

    def write_encoder(self, path: Path) -> None:
        """Write the model that gives the states of all tokens."""
        self._write(path, self._states, ["batch", "tokens", self._tensors["token_embd.weight"].shape[1]])

    def write_cross_encoder(self, path: Path) -> None:
        """Write the model that gives the score of each sequence, by its first token."""
        first = self._node("Gather", self._states, self._weight("first", np.array(0)), axis=1)
        inner = self._node("Tanh", self._dense("cls", first))
        self._write(path, self._dense("cls.output", inner), ["batch", 1])

    def _embedded(self) -> str:
        positions = self._tensors["position_embd.weight"] + self._tensors["token_types.weight"][0]
        length = self._node("Shape", "input_ids", start=1, end=2)
        zero = self._weight("zero", np.array(0).reshape(1))
        found = self._node("Slice", self._weight("positions", positions), zero, length)
        looked_up = self._node("Gather", self._weight("tokens", self._tensors["token_embd.weight"]), "input_ids")
        summed = self._node("Add", looked_up, found)
        return self._node("LayerNormalization", summed, *self._norm("token_embd_norm"), epsilon=self._epsilon)

    def _add_layer(self, layer: str) -> None:
        parts = [f"{layer}.attn_{part}" for part in "qkv"]
        weight = np.concatenate([self._tensors[f"{part}.weight"].T for part in parts], axis=1)
        bias = np.concatenate([self._tensors[f"{part}.bias"] for part in parts])
        mask = self._node("Cast", "attention_mask", to=TensorProto.INT32)
        given = (self._weight(f"{layer}.qkv", weight), self._weight(f"{layer}.qkv.bias", bias), mask)
        attended = self._node("Attention", self._states, *given, domain=FUSED, num_heads=self._heads)
        self._states = self._joined(f"{layer}.attn_output", attended)
        wide = self._node("MatMul", self._states, self._matrix(f"{layer}.ffn_up"))
        active = self._node("BiasGelu", wide, self._bias(f"{layer}.ffn_up"), domain=FUSED)
        self._states = self._joined(f"{layer}.ffn_down", active, norm=f"{layer}.layer_output_norm")

    def _joined(self, name: str, given: str, norm: str = "") -> str:
        """Return the norm of the states and of a product."""
        product = self._node("MatMul", given, self._matrix(name))
        inputs = (product, self._states, *self._norm(norm or f"{name}_norm"), self._bias(name))
        return self._node("SkipLayerNormalization", *inputs, domain=FUSED, epsilon=self._epsilon)

    def _dense(self, name: str, given: str) -> str:
        return self._node("Add", self._node("MatMul", given, self._matrix(name)), self._bias(name))

    def _matrix(self, name: str) -> str:
        return self._weight(f"{name}.weight", self._tensors[f"{name}.weight"].T)

    def _bias(self, name: str) -> str:
        return self._weight(f"{name}.bias", self._tensors[f"{name}.bias"])

    def _norm(self, name: str) -> tuple[str, str]:
        return self._weight(f"{name}.weight", self._tensors[f"{name}.weight"]), self._bias(name)

    def _weight(self, name: str, values: NDArray) -> str:
        self._weights.append(numpy_helper.from_array(values.copy(), name))
        return name

    def _node(self, operator: str, *inputs: str, **attributes: object) -> str:
        output = f"{operator}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _write(self, path: Path, output: str, shape: list[str | int]) -> None:
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in ("input_ids", "attention_mask")
        ]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self._nodes, "bert", inputs, [result], self._weights)
        opsets = [helper.make_opsetid("", VERSION), helper.make_opsetid(FUSED, 1)]
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
