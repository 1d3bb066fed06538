"""`python -m tests.bench.step`: prints where the time of a decode step goes, at one and at several clients.

Below the parts of the step stands what the same steps take in a process that does nothing else: what llama.cpp itself
needs on this machine. It asserts no time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from random import Random

from tests.bench.load import Measurement, measure, warm_up_queries
from tests.bench.ours import Ours
from tests.bench.scenarios import SCENARIOS
from tests.bench.step.times import DECODE, Snapshot, Times, timed_service

_MS = 1000.0


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
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(printed.splitlines()[-1])  # The engine may log what it thinks of a model before that.


def _report(clients: int, spent: Snapshot, measured: Measurement, bare_ms: float) -> str:
    calls, spent_s = spent.calls, spent.seconds
    decodes = sorted((part for part in calls if part.startswith(DECODE)), key=calls.__getitem__, reverse=True)
    usual, others = decodes[0], decodes[1:]
    steps = sum(calls[part] for part in decodes)
    wall_s = spent.at_s
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
    for kind, used_s in sorted(spent.processor_s.items()):
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
            await measure(ours, (), warm_up_queries(clients), clients)
            run = scenario.make(Random(f"{options.seed} {clients}"), options.requests)  # noqa: S311
            await measure(ours, run.warm_up, (), 1)
            before = await times.take()
            measured = await measure(ours, (), run.queries, clients)
            spent = (await times.take()).since(before)
            answers = measured.answers
            length = sum((answer.prompt_tokens or 0) + (answer.output_tokens or 0) // 2 for answer in answers)
            bare_ms = await asyncio.to_thread(_bare_ms, options.threads, clients, length // len(answers))
            _say(_report(clients, spent, measured, bare_ms))
    finally:
        await ours.close()


def main() -> None:
    """Entry point."""
    options = _options()
    with timed_service({"threads": str(options.threads), "tuning": "false"}) as (address, times):
        asyncio.run(_measure(options, address, times))


if __name__ == "__main__":
    main()
