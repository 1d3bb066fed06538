"""Computes a BERT with a classification head in numpy, from its definition (Devlin et al., 2018)."""

import math

import numpy as np

FIRST_TYPE = 0


class BertClassifier:
    """Scores sequences of tokens in 64 bits.

    Args:
        tensors: The tensors under the engine's names.
        heads: Attention heads of a layer.
        epsilon: What layer normalization adds to a variance.
    """

    def __init__(self, tensors, *, heads, epsilon):
        self._tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
        self._heads = heads
        self._epsilon = epsilon
        self._layers = sum(name.endswith("attn_q.weight") for name in tensors)

    def score(self, tokens, types=None):
        """Return the score of a sequence; `types` has the type of each token, the first one unless given."""
        types = [FIRST_TYPE] * len(tokens) if types is None else types
        parts = self._tensors
        states = parts["token_embd.weight"][tokens] + parts["position_embd.weight"][: len(tokens)]
        states = self._normal("token_embd_norm", states + parts["token_types.weight"][types])
        for layer in range(self._layers):
            states = self._layer(f"blk.{layer}.", states)
        pooled = np.tanh(self._dense("cls", states[0]))
        return float(self._dense("cls.output", pooled)[0])

    def _layer(self, prefix, states):
        attended = self._dense(f"{prefix}attn_output", self._attention(prefix, states))
        states = self._normal(f"{prefix}attn_output_norm", states + attended)
        wide = _gelu(self._dense(f"{prefix}ffn_up", states))
        return self._normal(f"{prefix}layer_output_norm", states + self._dense(f"{prefix}ffn_down", wide))

    def _attention(self, prefix, states):
        query, key, value = (self._by_head(f"{prefix}attn_{part}", states) for part in "qkv")
        logits = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        mixed = (powers / powers.sum(axis=-1, keepdims=True)) @ value
        return mixed.transpose(1, 0, 2).reshape(len(states), -1)

    def _by_head(self, name, states):
        return self._dense(name, states).reshape(len(states), self._heads, -1).transpose(1, 0, 2)

    def _dense(self, name, states):
        return states @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _normal(self, name, states):
        centered = states - states.mean(axis=-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + self._epsilon)
        return scaled * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]


def _gelu(values):
    return 0.5 * values * (1 + np.vectorize(math.erf)(values / math.sqrt(2)))
