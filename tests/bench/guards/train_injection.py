"""Trains the weights of the guard against injections: `make train-injection`.

A fifth of the texts, and bastioncorpus as a whole, take no part: their figures are written beside the weights.
"""

import hashlib
import json
import math
import re
import tempfile
from pathlib import Path

import numpy as np

from services.orchestrator.adapters.guards.injection.features import BUCKETS, buckets_of, parts_of
from services.orchestrator.adapters.guards.injection.guard import InjectionGuard
from tests.bench.guards import packages
from tests.bench.guards.figures import precision_recall

FOLDER = Path("services/orchestrator/adapters/guards/injection")
EPOCHS, RATE, DECAY, SEED, THRESHOLD = 12, 0.5, 3e-5, 1, 0.5
MAX_PARTS_OF_TEXT = 8


def is_held_out(text):
    """Tell whether a text is kept for the figures, by a hash of its words alone: near copies stay together."""
    words = " ".join(re.findall(r"\w+", text.casefold())[:12])
    return hashlib.sha256(words.encode()).digest()[0] % 5 == 0


def samples(texts, label):
    parts = {
        text[begin:end] for text in texts if text.strip() for begin, end in list(parts_of(text))[:MAX_PARTS_OF_TEXT]
    }
    return [(part, label) for part in sorted(parts)]


def train(cases):
    """Return weights and bias by AdaGrad; both labels weigh the same."""
    draw = np.random.default_rng(SEED)
    weights, bias = np.zeros(BUCKETS), 0.0
    squares, bias_square = np.full(BUCKETS, 1e-3), 1e-3
    features = [(buckets_of(text), label) for text, label in cases]
    positives = sum(label for _, label in features)
    weight_of = {True: len(features) / 2 / positives, False: len(features) / 2 / (len(features) - positives)}
    for _ in range(EPOCHS):
        for at in draw.permutation(len(features)):
            buckets, label = features[at]
            if not len(buckets):
                continue
            value = 1 / math.sqrt(len(buckets))
            said = 1 / (1 + math.exp(-max(-30, min(30, weights[buckets].sum() * value + bias))))
            step = (said - label) * weight_of[label]
            slope = step * value + DECAY * weights[buckets]
            squares[buckets] += slope**2
            weights[buckets] -= RATE * slope / np.sqrt(squares[buckets])
            bias_square += step**2
            bias -= RATE * step / math.sqrt(bias_square)
    return weights, bias


def main():
    with tempfile.TemporaryDirectory() as unpacked:
        folder = packages.unpack(unpacked)
        held_out = packages.bastion(folder)
        known = {text.casefold().strip() for text, _ in held_out}
        positive = [text for text in packages.injections(folder) if text.casefold().strip() not in known]
        negative = [text for text in packages.harmless(folder) if text.casefold().strip() not in known]
    learned = samples([text for text in positive if not is_held_out(text)], True)
    learned += samples([text for text in negative if not is_held_out(text)], False)
    weights, bias = train(learned)
    scale = float(np.abs(weights).max()) / 127
    rounded = np.round(weights / scale).astype(np.int8)
    guard = InjectionGuard(rounded, scale, bias, THRESHOLD)
    split = [(text, True) for text in positive if is_held_out(text)]
    split += [(text, False) for text in negative if is_held_out(text)]
    sets = {"split": split, "bastioncorpus": held_out}
    figures = {name: precision_recall(guard, cases) for name, cases in sets.items()}
    model = {
        "threshold": THRESHOLD,
        "scale": scale,
        "bias": bias,
        "trained_by": "tests/bench/guards/train_injection.py",
        "packages": list(packages.PACKAGES),
        "parts": {"injections": sum(label for _, label in learned), "harmless": sum(not one for _, one in learned)},
        "held_out": figures,
    }
    (FOLDER / "weights.int8").write_bytes(rounded.tobytes())
    (FOLDER / "model.json").write_text(json.dumps(model, indent=2) + "\n")
    print(json.dumps(model, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
