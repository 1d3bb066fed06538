"""`python -m tests.bench.step.turns`: prints what a prompt beside seven outputs takes in mixed steps, and in turns.

Four tokens of each output and a prompt of 218 tokens are computed, with flash attention, in one process, by turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from services.inference.adapters.openmp import set_spinning
from services.inference.settings import InferenceSettings

OUTPUTS, LENGTH, ROUNDS = 7, 250, 9
PARTS = {"mixed 56 56 56 50": (56, 56, 56, 50), "64 64 90": (64, 64, 90), "128 90": (128, 90), "218": (218,)}
_MS = 1000.0


def main() -> None:
    """Entry point."""
    set_spinning(InferenceSettings().spin_count)
    from pagantic_common.domain.messages import ModelInfo  # noqa: PLC0415
    from services.inference.adapters.llama.cache import EngineOptions  # noqa: PLC0415
    from services.inference.adapters.llama.engine import LlamaCppEngine  # noqa: PLC0415
    from services.inference.core.scheduling.batch import Slice  # noqa: PLC0415
    from tests.bench.served_file import served_file  # noqa: PLC0415

    options = EngineOptions(threads=os.cpu_count() or 1, key_type="f16", value_type="f16", flash_attention=True)
    engine = LlamaCppEngine(served_file(), ModelInfo("bare", 4096), options)

    def outputs(step: int) -> list[Slice]:
        return [Slice(sequence, [1], LENGTH + step, 1) for sequence in range(OUTPUTS)]

    def steps(sizes: tuple[int, ...], *, mixed: bool) -> list[list[Slice]]:
        made: list[list[Slice]] = []
        for step in range(4):
            prompt = [Slice(OUTPUTS, [1] * size, sum(sizes[:step]), 1) for size in sizes[step : step + 1]]
            made += [outputs(step) + prompt] if mixed else [outputs(step), prompt]
        return [step for step in made if step]

    for sequence in range(OUTPUTS):
        engine.decode([Slice(sequence, [1] * LENGTH, 0, 1)])
    times_ms: dict[str, list[float]] = {name: [] for name in PARTS}
    for _ in range(ROUNDS):
        for name, sizes in PARTS.items():
            planned = steps(sizes, mixed=name.startswith("mixed"))
            started_s = time.perf_counter()
            for slices in planned:
                engine.decode(slices)
            times_ms[name].append((time.perf_counter() - started_s) * _MS)
            for sequence in range(OUTPUTS + 1):
                engine.truncate(sequence, LENGTH if sequence < OUTPUTS else 0)
    engine.close()
    mixed_ms = next(iter(times_ms.values()))
    for name, measured_ms in times_ms.items():
        share = statistics.median(one / other for one, other in zip(measured_ms, mixed_ms, strict=True))
        sys.stdout.write(f"{name}: {statistics.median(measured_ms):.0f} ms, {share:.2f} of mixed steps\n")


if __name__ == "__main__":
    main()
