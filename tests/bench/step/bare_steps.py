"""`python -m tests.bench.step.bare_steps THREADS SEQUENCES TOKENS`: prints the milliseconds of a step of llama.cpp.

The step appends a token to each of so many sequences of that length, in a process that does nothing else.
"""

from __future__ import annotations

import statistics
import sys
import time

from services.inference.adapters.openmp import set_spinning
from services.inference.settings import InferenceSettings

STEPS = 60
_MS = 1000.0


def main() -> None:
    """Entry point."""
    threads, sequences, tokens = (int(argument) for argument in sys.argv[1:])
    set_spinning(InferenceSettings().spin_count)
    from pagantic_common.domain.messages import ModelInfo  # noqa: PLC0415
    from services.inference.adapters.llama.cache import EngineOptions  # noqa: PLC0415
    from services.inference.adapters.llama.engine import LlamaCppEngine  # noqa: PLC0415
    from services.inference.core.scheduling.batch import Slice  # noqa: PLC0415
    from services.inference.core.tuning import untuned, with_given  # noqa: PLC0415
    from tests.bench.served_file import served_file  # noqa: PLC0415

    settings = InferenceSettings()
    types = settings.cache_type
    tuning = with_given(untuned(threads, is_on_gpu=bool(settings.gpu_layers)), settings.given_tuning())
    options = EngineOptions(
        threads=threads,
        gpu_layers=settings.gpu_layers,
        kv_tokens=sequences * (tokens + STEPS),
        max_sequences=sequences,
        batch_tokens=max(sequences, tuning.step_tokens),
        key_type=types,
        value_type=types,
        flash_attention=tuning.flash_attention,
    )
    engine = LlamaCppEngine(served_file(), ModelInfo("bare", 4096), options)
    for sequence in range(sequences):
        for start in range(0, tokens, engine.max_batch_tokens):
            size = min(engine.max_batch_tokens, tokens - start)
            engine.decode([Slice(sequence, [1] * size, start, 1)])
    times_ms = []
    for step in range(STEPS):
        started_s = time.perf_counter()
        engine.decode([Slice(sequence, [1], tokens + step, 1) for sequence in range(sequences)])
        times_ms.append((time.perf_counter() - started_s) * _MS)
    engine.close()
    sys.stdout.write(f"{statistics.median(times_ms)}\n")


if __name__ == "__main__":
    main()
