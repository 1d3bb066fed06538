"""Finds prompt injections: text that tries to change a model's instructions. Option: `threshold`, a probability.

The weights were trained by `tests/bench/guards/train_injection.py`. `model.json` lists the training texts and the
measured accuracy figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from pagantic_common.guards.plugin import Finding, GuardTraits
from services.orchestrator.adapters.guards.injection.features import buckets_of, parts_of
from services.orchestrator.adapters.guards.options import check_names, read_number


class InjectionGuard:
    """Finds parts of a text that look like prompt injections."""

    traits = GuardTraits(reads_untrusted_only=True)

    def __init__(self, weights: npt.NDArray[np.int8], scale: float, bias: float, threshold: float) -> None:
        self._weights = weights
        self._scale = scale
        self._bias = bias
        self._threshold = threshold

    def find(self, text: str, start: int) -> list[Finding]:  # noqa: ARG002 - the position does not matter
        """Return the parts whose probability of being an injection is at least the threshold."""
        return [
            Finding(begin, end, "INJECTION")
            for begin, end in parts_of(text)
            if self.probability(text[begin:end]) >= self._threshold
        ]

    def probability(self, part: str) -> float:
        """Return the probability that a part is an injection."""
        buckets = buckets_of(part)
        if not len(buckets):
            return 0.0
        total = float(self._weights[buckets].sum(dtype=np.int64)) * self._scale / math.sqrt(len(buckets)) + self._bias
        return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, total))))


def make_guard(options: Mapping[str, Any]) -> InjectionGuard:
    """Make the guard from the packaged weights."""
    check_names(options, "threshold")
    folder = files(__package__)
    model = json.loads(folder.joinpath("model.json").read_text())
    weights = np.frombuffer(folder.joinpath("weights.int8").read_bytes(), dtype=np.int8)
    threshold = read_number(options, "threshold", model["threshold"], most=1.0)
    return InjectionGuard(weights, model["scale"], model["bias"], threshold)
