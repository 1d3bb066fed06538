"""Measures one way to run a model, and prints a JSON object.

It is a process of its own, since the OpenMP library reads its settings once, and since a build that this CPU cannot run
dies on the first large batch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.llama_cpp_embedder import EmbedderOptions, LlamaCppEmbedder
from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine
from services.inference.adapters.model_file import describe_model
from services.inference.core.batch import Slice
from services.inference.core.embedding import CAPABILITY

PROMPT_TOKENS = 192
CHECKED_TOKENS = 64
SEQUENCES = 8
DECODED_STEPS = 16
SHARED_TOKENS = 512
CONTEXT_TOKENS = SHARED_TOKENS + DECODED_STEPS
LONG_ENOUGH_S = 1.0
LONGEST_PROMPT_S = 8.0
_MS = 1000.0
_KEY = 1


def measure(path: Path, options: EngineOptions, *, sizes: tuple[int, ...]) -> dict[str, object]:
    """Return `row_ms` and `batch_ms`, of steps with one and with 8 short sequences, and `prompt_rates` in tokens/s.

    With sizes also `shared_ms`, of steps with 8 sequences of one long prompt, as long as the machine computes soon.
    """
    largest = max((*sizes, CHECKED_TOKENS))
    options = options.sized(batch_tokens=largest, context_tokens=CONTEXT_TOKENS, sequences=SEQUENCES)
    engine = LlamaCppEngine(path, ModelInfo("probe", CONTEXT_TOKENS), options)
    try:
        _compute_prompt(engine, PROMPT_TOKENS)
        engine.park(0, _KEY)
        row_ms = _step_ms(engine, 1)
        for sequence in range(1, SEQUENCES):
            engine.unpark(_KEY, sequence, PROMPT_TOKENS)
        batch_ms = _step_ms(engine, SEQUENCES)
        _clear(engine)
        result: dict[str, object] = {"row_ms": row_ms, "batch_ms": batch_ms}
        if sizes:
            rates = {size: _prompt_rate(engine, size) for size in sizes}
            result |= {"prompt_rates": rates, "shared_ms": _shared_ms(engine, max(rates.values()))}
        return result
    finally:
        engine.close()


def _compute_prompt(engine: LlamaCppEngine, size: int) -> None:
    for start in range(0, size, CHECKED_TOKENS):
        engine.decode([Slice(0, [1] * CHECKED_TOKENS, start, 1)])


def _clear(engine: LlamaCppEngine) -> None:
    for sequence in range(SEQUENCES):
        engine.truncate(sequence, 0)


def _shared_ms(engine: LlamaCppEngine, prompt_rate: float) -> float:
    size = SHARED_TOKENS if prompt_rate * LONGEST_PROMPT_S > SHARED_TOKENS else PROMPT_TOKENS
    _compute_prompt(engine, size)
    for sequence in range(1, SEQUENCES):
        engine.copy_prefix(0, sequence, size)
    shared_ms = _step_ms(engine, SEQUENCES, size)
    _clear(engine)
    return shared_ms


def _step_ms(engine: LlamaCppEngine, sequences: int, length: int = PROMPT_TOKENS) -> float:
    times: list[float] = []
    for step in range(DECODED_STEPS):
        if sum(times) > LONG_ENOUGH_S:
            break
        started = time.perf_counter()
        engine.decode([Slice(sequence, [1], length + step, 1) for sequence in range(sequences)])
        times.append(time.perf_counter() - started)
    for sequence in range(sequences):
        engine.truncate(sequence, length)
    return sorted(times)[len(times) // 4] * _MS  # what others do on the machine only makes steps slower


def _prompt_rate(engine: LlamaCppEngine, size: int) -> float:
    best = 0.0
    for _ in range(2):
        started = time.perf_counter()
        engine.decode([Slice(0, [1] * size, 0, 1)])
        best = max(best, size / (time.perf_counter() - started))
        engine.truncate(0, 0)
    return best


def _check_embedder(path: Path, info: ModelInfo, options: EngineOptions) -> None:
    """Compute one batch; a build that does not fit this CPU dies here."""
    embedder = LlamaCppEmbedder(path, info, EmbedderOptions.like(options))
    embedder.embed([[1] * min(CHECKED_TOKENS, info.context_window)])
    embedder.close()


def main() -> None:
    """Measure what the one argument, a JSON object, asks for."""
    order = json.loads(sys.argv[1])
    options = EngineOptions(**order["options"])
    info = describe_model(Path(order["path"]), alias="probe", context_tokens=CONTEXT_TOKENS)
    if CAPABILITY in info.capabilities:
        _check_embedder(Path(order["path"]), info, options)
        sys.exit("there is nothing to measure: the model decodes no text")
    print(json.dumps(measure(Path(order["path"]), options, sizes=tuple(order["sizes"]))))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
