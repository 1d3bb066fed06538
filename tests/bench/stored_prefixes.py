"""What a replica that starts again saves by the folder of prefixes.

`python -m tests.bench.stored_prefixes` starts replicas one after another and asks each a question about every system
prompt: without the folder; with it, twice to fill it and once more; and with it after a restart. It prints the time to
the first token, the prompt tokens that were computed, which no other process disturbs, and ratios to the first replica.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import grpc

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from tests.bench.routing import cluster
from tests.bench.texts import words_of
from tests.support.ports import free_ports

CALL_S = 300.0
OUTPUT_TOKENS = 4


@dataclass(slots=True)
class Measured:
    """What one question for each prompt took: time, and tokens of the prompts."""

    first_token_s: list[float] = field(default_factory=list)
    computed_tokens: int = 0
    cached_tokens: int = 0


class Replica:
    """A replica that answers questions about prompts."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = rpc.InferenceServiceStub(channel)

    def ask_all(self, prompts: Sequence[str], question: str) -> Measured:
        """Ask a question about each prompt in turn."""
        measured = Measured()
        for prompt in prompts:
            self._ask(prompt, question, measured)
        return measured

    def _ask(self, prompt: str, question: str, measured: Measured) -> None:
        request = pb.InferRequest(max_tokens=OUTPUT_TOKENS)
        request.sampling.temperature = 0.0
        request.chat.messages.add(role="ROLE_SYSTEM", content=prompt)
        request.chat.messages.add(role="ROLE_USER", content=question)
        begun_s, first_s = time.monotonic(), 0.0
        for response in self._stub.Infer(request, timeout=CALL_S):
            if not first_s and response.HasField("delta"):
                first_s = time.monotonic() - begun_s
            if response.HasField("completed"):
                usage = response.completed.usage
                measured.cached_tokens += usage.cached_prompt_tokens
                measured.computed_tokens += usage.prompt_tokens - usage.cached_prompt_tokens
        measured.first_token_s.append(first_s)


@contextmanager
def replica(state: Path, settings: dict[str, str]) -> Iterator[Replica]:
    """Start a replica, which ends with the block."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command, environment = cluster.replica_command(address, settings, is_paced=False)
    log = state / "replica.log"
    with cluster.running(command, environment, log):
        cluster.wait_until_serving(address, log)
        with grpc.insecure_channel(address) as channel:
            yield Replica(channel)


def prompt_of(number: int, tokens: int) -> str:
    """Return a system prompt of about so many tokens, which shares nothing with others."""
    source = Random(f"prompt {number}")  # noqa: S311 - no secret
    return f"List {number}: {words_of(source, tokens)}"


def show(name: str, measured: Measured, base: Measured) -> None:
    """Print the medians of one run, and their ratios to another."""
    median_s, base_s = statistics.median(measured.first_token_s), statistics.median(base.first_token_s)
    sys.stdout.write(
        f"{name:<28} first token {1000 * median_s:7.0f} ms ({median_s / base_s:.3f})   computed "
        f"{measured.computed_tokens:6} ({measured.computed_tokens / base.computed_tokens:.3f})   cached "
        f"{measured.cached_tokens:6}\n"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=900)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    prompts = [prompt_of(number, given.tokens) for number in range(given.prompts)]
    settings = {"CONTEXT_TOKENS": "2048", "THREADS": str(given.threads)}
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        stored = {**settings, "PREFIX_FOLDER": str(state / "prefixes")}
        with replica(state, settings) as without:
            cold = without.ask_all(prompts, "Which name comes first?")
        with replica(state, stored) as first:
            first.ask_all(prompts, "Which name comes first?")
            first.ask_all(prompts, "Which city comes first?")
            warm = first.ask_all(prompts, "Which number comes first?")
        files = [path.stat().st_size for path in (state / "prefixes").iterdir()]
        with replica(state, stored) as again:
            restarted = again.ask_all(prompts, "Which number comes first?")
    sys.stdout.write(f"{len(prompts)} prompts of about {given.tokens} tokens; medians, and ratios to the first line\n")
    show("started, no folder", cold, cold)
    show("started, with the folder", restarted, cold)
    show("running, in its own memory", warm, cold)
    sys.stdout.write(f"the folder has {len(files)} blocks, {sum(files) / 1e6:.0f} MB\n")


if __name__ == "__main__":
    main()
