"""`python -m tests.bench.step`: prints where the time of a decode step goes, at one and at several clients.

Below the parts of the step stands what the same steps take in a process that does nothing else: what llama.cpp itself
needs on this machine. It asserts no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.bench.load import Measurement, Query, measure
from tests.bench.ours import Ours, running_service
from tests.bench.scenarios import SCENARIOS

_MS = 1000.0
DECODE = "decode"
_SNAPSHOT_S = 10.0
_POLL_S = 0.01
_WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the timed service has spent so far."""

    at_s: float
    seconds: Mapping[str, float]
    calls: Mapping[str, int]
    processor_s: Mapping[str, float]


class Times:
    """Asks a timed service for snapshots."""

    def __init__(self, process_id: int, file: Path) -> None:
        self._process_id = process_id
        self._file = file
        self._taken = 0

    async def take(self) -> Snapshot:
        """Return what was spent so far."""
        self._taken += 1
        os.kill(self._process_id, signal.SIGUSR1)
        async with asyncio.timeout(_SNAPSHOT_S):
            while len(lines := self._file.read_text(encoding="utf-8").splitlines()) < self._taken:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)  # another process writes the file
        return Snapshot(**json.loads(lines[-1]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.step", description=__doc__)
    parser.add_argument("--scenario", default="chat", help="of the bench of inference")
    parser.add_argument("--clients", default="1,8", help="numbers of clients, comma-separated")
    parser.add_argument("--requests", type=int, default=24, help="requests at each number of clients")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads that decode")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what prompts and answers are drawn from")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _bare_ms(threads: int, sequences: int, tokens: int) -> float:
    """Return the time of a step of so many sequences of that length in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.step.bare_steps", str(threads), str(sequences), str(tokens)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _report(clients: int, before: Snapshot, after: Snapshot, measured: Measurement, bare_ms: float) -> str:
    calls = {part: count - before.calls.get(part, 0) for part, count in after.calls.items()}
    spent_s = {part: seconds - before.seconds.get(part, 0.0) for part, seconds in after.seconds.items()}
    decodes = sorted((part for part in calls if part.startswith(DECODE)), key=calls.__getitem__, reverse=True)
    usual, others = decodes[0], decodes[1:]
    steps = sum(calls[part] for part in decodes)
    wall_s = after.at_s - before.at_s
    tokens = sum(answer.output_tokens or 0 for answer in measured.answers)
    here_ms = spent_s[usual] / calls[usual] * _MS
    lines = [
        f"{clients} clients: {tokens / measured.wall_s:.1f} tokens/s, {steps} steps of {wall_s / steps * _MS:.2f} ms",
        f"  llama_decode of{usual.removeprefix(DECODE)} tokens takes {here_ms:.2f} ms, and {bare_ms:.2f} ms alone",
    ]

    def add(label: str, parts: Sequence[str]) -> None:
        count, whole_s = sum(calls[part] for part in parts), sum(spent_s[part] for part in parts)
        lines.append(f"  {label:<36}{whole_s / steps * _MS:>8.3f} ms a step{count / steps:>8.2f} calls")

    add(f"decode:{usual.removeprefix(DECODE)} tokens", [usual])
    add("decode: other steps", others)
    for part in sorted(set(calls) - set(decodes), key=spent_s.__getitem__, reverse=True):
        add(part, [part])
    for kind in sorted(after.processor_s):
        used_s = after.processor_s[kind] - before.processor_s.get(kind, 0.0)
        lines.append(f"  {f'processor: {kind}':<36}{used_s / steps * _MS:>8.3f} ms a step{used_s / wall_s:>8.2f} cores")
    used_s = measured.client_cpu_s
    lines.append(
        f"  {'processor: load generator':<36}{used_s / steps * _MS:>8.3f} ms a step{used_s / wall_s:>8.2f} cores"
    )
    return "\n".join(lines)


async def _measure(options: argparse.Namespace, address: str, times: Times) -> None:
    scenario = next(known for known in SCENARIOS if known.name == options.scenario)
    ours = Ours(address)
    try:
        await ours.find_end_tokens()
        for clients in (int(clients) for clients in options.clients.split(",")):
            warm_up = [Query(text=f"{index} and then", max_tokens=_WARM_UP_TOKENS) for index in range(clients)]
            await measure(ours, (), warm_up, clients)
            run = scenario.make(Random(f"{options.seed} {clients}"), options.requests)  # noqa: S311
            await measure(ours, run.warm_up, (), 1)
            before = await times.take()
            measured = await measure(ours, (), run.queries, clients)
            after = await times.take()
            answers = measured.answers
            length = sum((answer.prompt_tokens or 0) + (answer.output_tokens or 0) // 2 for answer in answers)
            bare_ms = await asyncio.to_thread(_bare_ms, options.threads, clients, length // len(answers))
            _say(_report(clients, before, after, measured, bare_ms))
    finally:
        await ours.close()


def main() -> None:
    """Entry point."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times"
        file.touch()
        os.environ["TIMES_FILE"] = str(file)
        settings = {"threads": str(options.threads), "tuning": "false"}
        with running_service("inference", module="tests.bench.step.timed_service", **settings) as (address, process_id):
            asyncio.run(_measure(options, address, Times(process_id, file)))


if __name__ == "__main__":
    main()
