"""Measures ways to run a model and prints one JSON object per round, or only tries the engine on this CPU.

This module runs in a separate process. The service ends the process when a request arrives, and a build that this CPU
cannot run crashes only this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.settings import LogFormat
from pagantic_common.telemetry.logging import set_up_logging
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.embedder import EmbedderOptions, embedder_kind
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.machine import CpuClock, spare_cores
from services.inference.adapters.model_file import describe_model
from services.inference.core.scheduling.batch import Slice
from services.inference.core.tuning import MAX_ROUNDS, StepKind, StepTimes

CHECKED_TOKENS = 64
SEQUENCES = 8
STEPS = 6
SHORT_TOKENS = 128
LONG_ENOUGH_S = 0.5
LONGEST_STEP_S = 1.0
LONGEST_PROMPT_S = 8.0
_PR_SET_PDEATHSIG = 1
_MS = 1000.0
_KEY = 1


class _Bench:
    """A context with a long prompt in host memory. Its steps are measured at different lengths and widths."""

    def __init__(self, engine: LlamaCppEngine, long_tokens: int) -> None:
        self._engine = engine
        self._long_tokens = long_tokens

    def prepare(self, *, batch_tokens: int) -> None:
        """Compute the long prompt, or a shorter prompt if the long prompt would take too long."""
        started_s, size = time.perf_counter(), 0
        while size < self._long_tokens and (size < SHORT_TOKENS or time.perf_counter() - started_s < LONGEST_PROMPT_S):
            self._engine.decode([Slice(0, [1] * batch_tokens, size, 1)])
            size += batch_tokens
        self._long_tokens = size
        self._engine.park(0, 0, size, _KEY)

    def step_ms(self, threads: int) -> StepTimes:
        """Return the time of one step of each kind, in milliseconds."""
        apart_ms = self.apart_ms(threads)
        shared_ms, alone_ms = self._long_ms(threads)
        times = {
            StepKind.ALONE: alone_ms,
            StepKind.APART: apart_ms,
            StepKind.SHARED: shared_ms,
            StepKind.PROMPT: self._prompt_ms(),
        }
        return tuple(times[kind] for kind in StepKind)

    def apart_ms(self, threads: int) -> float:
        """Return the time of a step of 8 sequences that share no tokens, in milliseconds."""
        self._clear()
        for sequence in range(SEQUENCES):
            self._engine.unpark(_KEY, sequence, SHORT_TOKENS)
        return self._step_ms(threads, SEQUENCES, SHORT_TOKENS)

    def _long_ms(self, threads: int) -> tuple[float, float]:
        """Return the times, in milliseconds, of a step of 8 sequences with a shared long prompt and of a step of 1."""
        self._clear()
        self._engine.unpark(_KEY, 0, self._long_tokens)
        alone_ms = self._step_ms(threads, 1, self._long_tokens)
        for sequence in range(1, SEQUENCES):
            self._engine.copy_prefix(0, sequence, self._long_tokens)
        return self._step_ms(threads, SEQUENCES, self._long_tokens), alone_ms

    def _prompt_ms(self) -> float:
        """Return the time, in milliseconds, of a step that continues the long prompt in the first sequence."""
        started_s = time.perf_counter()
        self._engine.decode([Slice(0, [1] * CHECKED_TOKENS, self._long_tokens, 1)])
        return (time.perf_counter() - started_s) * _MS

    def rate(self, threads: int, size: int) -> float:
        """Return the speed, in tokens per second, of a step that processes `size` tokens of a prompt."""
        self._clear()
        self._engine.set_threads(threads)
        started_s = time.perf_counter()
        self._engine.decode([Slice(0, [1] * size, 0, 1)])
        return size / (time.perf_counter() - started_s)

    def _step_ms(self, threads: int, sequences: int, length: int) -> float:
        self._engine.set_threads(threads)
        times_s: list[float] = []
        for step in range(STEPS):
            if sum(times_s) > LONG_ENOUGH_S:
                break
            started_s = time.perf_counter()
            self._engine.decode([Slice(sequence, [1], length + step, 1) for sequence in range(sequences)])
            times_s.append(time.perf_counter() - started_s)
        for sequence in range(sequences):
            self._engine.truncate(sequence, length)
        return min(times_s) * _MS  # other processes can only make a step slower

    def _clear(self) -> None:
        for sequence in range(SEQUENCES):
            self._engine.truncate(sequence, 0)


def measure(
    path: Path, options: EngineOptions, *, threads: tuple[int, ...], sizes: tuple[int, ...], long_tokens: int
) -> None:
    """Measure rounds, and print each round. The first of `threads` is the baseline for the other thread counts."""
    options = replace(
        options,
        threads=threads[0],
        batch_tokens=max(sizes),
        context_tokens=long_tokens + CHECKED_TOKENS,
        kv_tokens=long_tokens + SEQUENCES * (SHORT_TOKENS + STEPS),
        max_sequences=SEQUENCES,
    )
    plain = LlamaCppEngine(path, ModelInfo("probe", long_tokens + CHECKED_TOKENS), options)
    flash = plain.beside(replace(options, flash_attention=True))
    benches = {False: _Bench(plain, long_tokens), True: _Bench(flash, long_tokens)}
    for bench in benches.values():
        bench.prepare(batch_tokens=CHECKED_TOKENS)
    smallest_s = min(sizes) / benches[False].rate(threads[0], min(sizes))
    sizes = tuple(size for size in sizes if size == min(sizes) or smallest_s * size / min(sizes) < LONGEST_STEP_S)
    for _ in range(2 * MAX_ROUNDS):
        print(json.dumps(_round(benches, threads, sizes)), flush=True)  # noqa: T201 - its output


def _round(benches: Mapping[bool, _Bench], threads: tuple[int, ...], sizes: tuple[int, ...]) -> dict[str, Any]:
    clock, usual = CpuClock.read(), threads[0]
    flash_ms = {is_on: bench.step_ms(usual) for is_on, bench in benches.items()}
    threads_ms = {usual: flash_ms[False][StepKind.APART]}
    threads_ms |= {count: benches[False].apart_ms(count) for count in threads[1:]}
    rates = {int(is_on): {size: bench.rate(usual, size) for size in sizes} for is_on, bench in benches.items()}
    return {
        "threads_ms": threads_ms,
        "flash_ms": {int(is_on): row for is_on, row in flash_ms.items()},
        "prompt_rates": rates,
        "others_cores": clock.others_cores(),
        "spare_cores": spare_cores(usual),
    }


def check(path: Path, options: EngineOptions) -> None:
    """Decode one batch, which kills this process if the build does not fit this CPU."""
    info = describe_model(path, alias="probe", context_tokens=CHECKED_TOKENS)
    if kind := embedder_kind(info):
        embedder = kind(path, info, EmbedderOptions.like(options))
        embedder.embed([[1] * min(CHECKED_TOKENS, info.context_window)])
        embedder.close()
        return
    options = replace(
        options, batch_tokens=CHECKED_TOKENS, context_tokens=CHECKED_TOKENS, kv_tokens=CHECKED_TOKENS, max_sequences=1
    )
    engine = LlamaCppEngine(path, info, options)
    engine.decode([Slice(0, [1] * CHECKED_TOKENS, 0, 1)])
    engine.close()


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the service that asked is gone")


def main() -> None:
    """Execute the order in the only command-line argument, a JSON object."""
    order = json.loads(sys.argv[1])
    _end_with_parent(order["parent"])
    os.nice(order["nice"])
    set_up_logging("inference", level="ERROR", log_format=LogFormat.JSON)  # logs to stderr, rounds to stdout
    path, options = Path(order["path"]), EngineOptions(**order["options"])
    if order["threads"]:
        measure(
            path,
            options,
            threads=tuple(order["threads"]),
            sizes=tuple(order["sizes"]),
            long_tokens=order["long_tokens"],
        )
    else:
        check(path, options)


if __name__ == "__main__":
    main()
