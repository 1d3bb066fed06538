"""fastembed in a process of its own: answers each line of its input, a request as JSON, with a line of JSON.

`python peer.py FOLDER THREADS`: the folder has `tensors.npz`, under llama.cpp's names, and the files of the tokenizer.
The time of an answer is that of fastembed alone, without what this process reads and writes.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from fastembed.rerank.cross_encoder import TextCrossEncoder
from onnx_bert import Graph

NAME = "bench"
HEADS = 12
EPSILON = 1e-12
# sentence-transformers sorts texts by length, and puts so many into a batch.
SORTED_BATCH = 32


def main() -> None:
    """Answer requests until the input ends."""
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    tasks = load(folder, threads)
    for line in sys.stdin:
        request = json.loads(line)
        started_s = time.perf_counter()
        values = tasks[request["task"]](request)
        seconds = time.perf_counter() - started_s
        answer = {"seconds": seconds, "values": [np.asarray(one).tolist() for one in values]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def load(folder: Path, threads: int) -> dict[str, Callable[[dict[str, Any]], Sequence[Any]]]:
    """Return what computes each task."""
    tensors = dict(np.load(folder / "tensors.npz"))
    encoder, cross_encoder = (_model_folder(folder, name) for name in ("encoder", "cross-encoder"))
    Graph(tensors, heads=HEADS, epsilon=EPSILON).write_encoder(encoder / "model.onnx")
    Graph(tensors, heads=HEADS, epsilon=EPSILON).write_cross_encoder(cross_encoder / "model.onnx")
    nowhere = ModelSource(hf="none/none")
    TextEmbedding.add_custom_model(
        NAME, pooling=PoolingType.MEAN, normalization=True, sources=nowhere, dim=384, model_file="model.onnx"
    )
    TextCrossEncoder.add_custom_model(NAME, sources=nowhere, model_file="model.onnx")
    embedding = TextEmbedding(NAME, specific_model_path=str(encoder), threads=threads)
    scorer = TextCrossEncoder(NAME, specific_model_path=str(cross_encoder), threads=threads)

    def embed_sorted(request: dict[str, Any]) -> Sequence[Any]:
        texts = request["texts"]
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        found = embedding.embed([texts[place] for place in order], batch_size=SORTED_BATCH)
        return [vector for _, vector in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]

    return {
        "embed": lambda request: list(embedding.embed(request["texts"])),
        "embed_sorted": embed_sorted,
        "score": lambda request: list(scorer.rerank(request["query"], request["texts"])),
    }


def _model_folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    for file in folder.glob("*.json"):
        shutil.copy(file, made)
    return made


if __name__ == "__main__":
    main()
