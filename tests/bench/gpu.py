"""What a GPU brings, step by step: `python -m tests.bench.gpu --peer-program llama-server`.

1. agreement: greedy answers of the GPU and of the CPU, and how far they are equal.
2. tuning: the step size, and flash attention, that the service measures for itself.
3. idle cells: a shared prompt with MAX_IDLE_TOKENS at 0, at its default, and at half of the cache.
4. beside llama-server, built with the same flags, at each number of clients.

`--gpu-layers 0` goes the same way without a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import grpc

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from services.inference.adapters.default_model import find_default_model
from tests.bench.llama_server import running_llama_server
from tests.bench.load import BenchError, Query
from tests.bench.ours import Ours, running_service
from tests.bench.report import equal_characters
from tests.bench.texts import CITIES

WINDOW = 1024  # tokens of a request, with its answer
COMPARED_TOKENS = 64
TUNE_S = 900.0
SCENARIOS = "chat,shared,schema,vote"


def main() -> None:
    """Entry point."""
    options = _options()
    options.model = options.model or find_default_model()
    clients = [int(one) for one in options.clients.split(",")]
    settings = {
        "model_path": str(options.model),
        "embedding_model": "none",
        "context_tokens": str(WINDOW),
        "kv_tokens": str(WINDOW * max(clients)),
        "max_running": str(max(clients)),
        "queue_capacity": "1000",
    }
    on_gpu = {**settings, "gpu_layers": str(options.gpu_layers)}
    _say(f"{_device(options.gpu_layers)}; {options.model.name}")
    _compare_answers(settings, on_gpu)
    tuned = _tune(on_gpu)
    _measure_idle_cells({**on_gpu, **tuned}, options)
    _measure_beside({**on_gpu, **tuned}, options, max(clients))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--peer-program", type=Path, help="llama-server; without it the last step is left out")
    parser.add_argument("--model", type=Path, help="GGUF file; without it the bundled model")
    parser.add_argument("--gpu-layers", type=int, default=-1, help="layers on the GPU; -1 is all, 0 none")
    parser.add_argument("--clients", default="1,8,32,128", help="numbers of clients, comma-separated")
    parser.add_argument("--runs", type=int, default=3, help="runs, of which medians are taken")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _device(gpu_layers: int) -> str:
    if not gpu_layers:
        return "no GPU is used"
    program = shutil.which("nvidia-smi")
    if program is None:
        raise BenchError("nvidia-smi is not there: this needs an NVIDIA GPU with its driver, or --gpu-layers 0")
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()


def _compare_answers(on_cpu: dict[str, str], on_gpu: dict[str, str]) -> None:
    """Print how many characters of greedy answers are equal; a model's ties may fall either way."""
    answers = [asyncio.run(_answers({**settings, "tuning": "false"})) for settings in (on_cpu, on_gpu)]
    parts = [(equal_characters(*pair), len(pair[0])) for pair in zip(*answers, strict=True)]
    _say("agreement, in characters: " + ", ".join(f"{equal} of {length}" for equal, length in parts))


async def _answers(settings: dict[str, str]) -> list[str]:
    with running_service("inference", **settings) as (address, _):
        ours = Ours(address)
        try:
            await ours.find_end_tokens()
            return [(await ours.ask(_greedy(f"What is {city} known for?"))).texts[0] for city in CITIES[:8]]
        finally:
            await ours.close()


def _greedy(question: str) -> Query:
    messages = (("user", question),)
    return Query(messages, max_tokens=COMPARED_TOKENS, temperature=0.0, is_full_length=True)


def _tune(settings: dict[str, str]) -> dict[str, str]:
    """Print what the service chooses, and return it as settings."""
    with (
        running_service("inference", **settings, tuning="false") as (address, _),
        grpc.insecure_channel(address) as channel,
    ):
        stub = rpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        started_s = time.monotonic()
        stub.TuneEngine(pb.TuneEngineRequest(), timeout=TUNE_S)
        description = stub.DescribeEngine(pb.DescribeEngineRequest())
    _say(f"tuning, {time.monotonic() - started_s:.0f} s:")
    for choice in description.choices:
        _say(f"  {choice.name} = {choice.value}: {choice.reason}")
    return {choice.name: choice.value for choice in description.choices if choice.name != "threads"}


def _measure_idle_cells(settings: dict[str, str], options: argparse.Namespace) -> None:
    for idle in ("0", "auto", str(int(settings["kv_tokens"]) // 2)):
        _say(f"MAX_IDLE_TOKENS={idle}")
        with running_service("inference", **settings, max_idle_tokens=idle) as (address, _):
            _bench(address, ["--scenarios", "shared", "--clients", options.clients, "--runs", str(options.runs)])


def _measure_beside(settings: dict[str, str], options: argparse.Namespace, slots: int) -> None:
    if options.peer_program is None:
        return
    arguments = ["--scenarios", SCENARIOS, "--clients", options.clients, "--runs", str(options.runs)]
    with (
        running_service("inference", **settings) as (address, _),
        _llama_server(options, slots) as url,
    ):
        _bench(address, [*arguments, "--peer", url, "--requests", str(max(16, 2 * slots))])


def _bench(address: str, arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "tests.bench", "--ours", address, *arguments], check=True)


def _llama_server(options: argparse.Namespace, slots: int) -> AbstractContextManager[str]:
    """Run llama-server with the same model, layers and cache."""
    layers = 999 if options.gpu_layers < 0 else options.gpu_layers
    arguments = ["--jinja", "--n-gpu-layers", layers, "--parallel", slots, "--ctx-size", WINDOW * slots]
    return running_llama_server(options.peer_program, options.model, [*map(str, arguments)])


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(str(error))
