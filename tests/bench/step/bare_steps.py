"""`python -m tests.bench.step.bare_steps THREADS SEQUENCES TOKENS`: prints the milliseconds of a step of llama.cpp.

The step appends a token to each of so many sequences of that length, in a process that does nothing else.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.machine import set_spinning
from services.inference.core.tuning import DEFAULT_SPIN_COUNT

STEPS = 60
_MS = 1000.0


def main() -> None:
    """Entry point."""
    threads, sequences, tokens = (int(argument) for argument in sys.argv[1:])
    set_spinning(int(os.environ.get("PAGANTIC_INFERENCE_SPIN_COUNT", DEFAULT_SPIN_COUNT)))
    from pagantic_common.domain.messages import ModelInfo  # noqa: PLC0415
    from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine  # noqa: PLC0415
    from services.inference.core.scheduling.batch import Slice  # noqa: PLC0415

    engine = LlamaCppEngine(_served_file(), ModelInfo("bare", 4096), EngineOptions(threads=threads))
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


def _served_file() -> Path:
    """Return the file that a service with the same settings loads."""
    from services.inference.settings import InferenceSettings  # noqa: PLC0415
    from services.inference.wiring.own_model.weights import own_weights  # noqa: PLC0415

    settings = InferenceSettings()
    return own_weights(settings, Path(settings.model_path) if settings.model_path else find_default_model())


if __name__ == "__main__":
    main()
