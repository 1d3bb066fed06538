"""Texts per second of Embed, and pairs of ScorePairs, beside fastembed: `python -m tests.bench.embeddings`.

A service of this checkout answers over gRPC. fastembed (onnxruntime) computes the same weights in a process of its own,
once as it batches by default, and once as sentence-transformers does: sorted by length, 32 at a time. Both use the same
number of threads and take turns, so that a busy machine delays both. The texts are the questions and the abstracts of
Cranfield (PAGANTIC_SUITES). No package has a cross-encoder: that of the pairs is the embedding model with a head of
random weights. The agreement is the least cosine of two vectors, and the largest difference of two scores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from services.inference.adapters.conversion import ALIAS, VOCABULARY
from tests.bench import cranfield
from tests.bench.ours import running_service
from tests.support.cross_encoder import write_cross_encoder

PACKAGES = ("fastembed==0.9.1", "onnx==1.23.2")
CROSS_ENCODER = "cross-encoder"
COUNTS = (1, 16, 64)
# A round has at least so many texts: where a call has fewer, the round has several calls.
LEAST_TEXTS = 16
# A text has at most so many tokens: together with a question, it fits into the window of both sides.
MOST_TOKENS = 450
CALL_S = 120.0

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Side:
    """One that computes: returns the seconds that a task took and its values."""

    name: str
    compute: Callable[[str, Sequence[str]], tuple[float, Values]]


def main() -> None:
    """Print a row for each kind of text, each number of texts in a call, and each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-python", help="python that has fastembed and onnx; without it they are installed")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = folder / "cross-encoder.gguf"
        tensors = write_cross_encoder(model)
        np.savez(folder / "tensors.npz", **{name: tensor.astype(np.float32) for name, tensor in tensors.items()})
        models = json.dumps({CROSS_ENCODER: str(model)})
        settings = {"model_path": "none", "models": models, "default_model": CROSS_ENCODER, "threads": options.threads}
        given = {name: str(value) for name, value in settings.items()}
        address, _ = stack.enter_context(running_service("inference", **given))
        stub = pb_grpc.InferenceServiceStub(stack.enter_context(grpc.insecure_channel(address)))
        ask = stack.enter_context(_peer(folder, options.peer_python, options.threads))
        _print_rows(stub, ask, options.rounds)


def _print_rows(stub: pb_grpc.InferenceServiceStub, ask: Callable[..., tuple[float, Values]], rounds: int) -> None:
    queries = list(cranfield.queries().values())
    texts = {"questions": queries, "abstracts": _short(stub, list(cranfield.documents().values()))}
    embedding = [
        Side("ours", lambda _, given: _embed(stub, given)),
        Side("fastembed", lambda _, given: ask(task="embed", texts=given)),
        Side("sorted", lambda _, given: ask(task="embed_sorted", texts=given)),
    ]
    scoring = [
        Side("ours", lambda query, given: _score(stub, query, given)),
        Side("fastembed", lambda query, given: ask(task="score", query=query, texts=given)),
    ]
    _say("| task | texts a call | ours/s | fastembed/s | sorted/s | ours / best | agreement |")
    _say("|---|---|---|---|---|---|---|")
    for kind, given in texts.items():
        for count in COUNTS:
            _print_row(f"Embed, {kind}", count, _rates(embedding, queries, given, count, rounds), _cosine)
    for count in COUNTS:
        rates = _rates(scoring, queries, texts["abstracts"], count, rounds)
        _print_row("ScorePairs, abstracts", count, rates, _difference)


def _rates(
    sides: Sequence[Side], queries: Sequence[str], texts: Sequence[str], count: int, rounds: int
) -> dict[str, tuple[float, Values]]:
    """Return the median texts per second of each side, which take turns, and its values of the first call."""
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    calls = max(1, LEAST_TEXTS // count)
    first = {side.name: side.compute(queries[0], texts[:count])[1] for side in sides}  # it loads the model, too
    for number in range(rounds):
        for side in sides:
            took_s = 0.0
            for call in range(calls):
                start = (number * calls + call) * count % (len(texts) - count)
                took_s += side.compute(queries[number], texts[start : start + count])[0]
            seconds[side.name].append(took_s)
    return {name: (calls * count / statistics.median(took), first[name]) for name, took in seconds.items()}


def _print_row(
    task: str, count: int, found: Mapping[str, tuple[float, Values]], agreement: Callable[[Values, Values], str]
) -> None:
    rates = {name: rate for name, (rate, _) in found.items()}
    best = max(rate for name, rate in rates.items() if name != "ours")
    shown = [f"{rates[name]:.1f}" if name in rates else "" for name in ("ours", "fastembed", "sorted")]
    agreed = agreement(found["ours"][1], found["fastembed"][1])
    _say(f"| {task} | {count} | {' | '.join(shown)} | {rates['ours'] / best:.2f} | {agreed} |")


def _cosine(ours: Values, theirs: Values) -> str:
    return f"{(ours * theirs).sum(axis=1).min():.5f}"


def _difference(ours: Values, theirs: Values) -> str:
    return f"{np.abs(ours - theirs).max():.4f} of {np.abs(theirs).max():.2f}"


def _embed(stub: pb_grpc.InferenceServiceStub, texts: Sequence[str]) -> tuple[float, Values]:
    started_s = time.perf_counter()
    reply = stub.Embed(pb.EmbedRequest(model=ALIAS, texts=texts), timeout=CALL_S)
    values = np.array([embedding.values for embedding in reply.embeddings])
    return time.perf_counter() - started_s, values


def _score(stub: pb_grpc.InferenceServiceStub, query: str, texts: Sequence[str]) -> tuple[float, Values]:
    request = pb.ScorePairsRequest(model=CROSS_ENCODER, query=query, texts=texts)
    started_s = time.perf_counter()
    reply = stub.ScorePairs(request, timeout=CALL_S)
    return time.perf_counter() - started_s, np.array(reply.scores)


def _short(stub: pb_grpc.InferenceServiceStub, texts: Sequence[str]) -> list[str]:
    """Return the texts that fit into the window of both."""
    counted = stub.CountTokens(pb.CountTokensRequest(model=ALIAS, texts=texts), timeout=CALL_S).text_tokens
    return [text for text, tokens in zip(texts, counted, strict=True) if tokens <= MOST_TOKENS]


@contextmanager
def _peer(folder: Path, python: str | None, threads: int) -> Iterator[Callable[..., tuple[float, Values]]]:
    """Start fastembed; yields what sends it a request and returns its seconds and its values."""
    for file in VOCABULARY.find(otherwise="").parent.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    script = str(Path(__file__).with_name("peer.py"))
    command = [python or _install(folder / "peer"), script, str(folder), str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, answers = process.stdin, process.stdout

        def ask(**request: Any) -> tuple[float, Values]:
            given.write(json.dumps(request) + "\n")
            given.flush()
            answer = json.loads(answers.readline())
            return answer["seconds"], np.array(answer["values"])

        try:
            yield ask
        finally:
            given.close()


def _install(folder: Path) -> str:
    """Make an environment with fastembed and return its python."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
    return python


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
