"""What lengths of context and types of the KV cache cost: time of prompts and of steps, memory, and quality.

`python -m tests.bench.context --model FILE.gguf` measures, at each length, the rate of a prompt's next batch and that
of decoding: one sequence, 8 that share all of their tokens, and 8 that share nothing. With one thread, it counts the
time of the processor, which other processes disturb little. The cells are copies of one computed
block, moved to their places: the time of a step does not depend on what they hold. All types take turns, and the
shortest times count. `--quality` compares the types on abstracts of Cranfield instead, and needs PAGANTIC_SUITES.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import llama_cpp
import numpy as np

from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.core.scheduling.batch import Slice
from tests.bench.cranfield import documents
from tests.bench.served_file import served_file

BLOCK = 512
SEQUENCES = 8
# A block is moved in this sequence.
MOVER = SEQUENCES
MOST_STEPS = 12
LONG_ENOUGH_S = 1.0
LAYOUTS = ("f16/f16", "q8_0/f16", "f16/f16 flash", "q8_0/f16 flash", "f16/q8_0 flash", "q8_0/q8_0 flash")
_KEY = 1


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: of a prompt's batch, and of a step of one sequence, of 8 that share all, of 8 that share nothing."""

    batch_s: float
    one_s: float
    shared_s: float
    apart_s: float

    def best(self, other: Times) -> Times:
        """Return the shorter times of both."""
        return Times(*map(min, astuple(self), astuple(other)))


def options_of(layout: str, cells: int, given: argparse.Namespace) -> EngineOptions:
    """Return the options of a layout such as 'q8_0/f16 flash': types of keys and of values, and flash attention."""
    types, _, flash = layout.partition(" ")
    key_type, value_type = types.split("/")
    return EngineOptions(
        context_tokens=max(given.lengths),
        kv_tokens=cells,
        max_sequences=SEQUENCES + 1,
        batch_tokens=given.batch,
        threads=given.threads,
        flash_attention=bool(flash),
        key_type=key_type,
        value_type=value_type,
    )


class LongSequences:
    """The sequences of an engine, which get long quickly."""

    def __init__(self, engine: LlamaCppEngine, now_s: Callable[[], float]) -> None:
        self._engine = engine
        self._now_s = now_s
        self._batch = engine.max_batch_tokens
        for start in range(0, BLOCK, self._batch):
            engine.decode([Slice(0, [1] * self._batch, start, 0)])
        engine.park(0, 0, BLOCK, _KEY)
        self.bytes_per_token = engine.copy_out(0, 0, BLOCK).size / BLOCK
        engine.truncate(0, 0)

    def measure(self, length: int, *, is_apart: bool) -> Times:
        """Return the times at a length; sequences apart take 8 times the cells."""
        self._fill(0, length)
        batch_s = self._time([Slice(0, [1] * self._batch, length, 1)])
        one_s = self._time([Slice(0, [1], length, 1)])
        steps = [Slice(sequence, [1], length, 1) for sequence in range(SEQUENCES)]
        for sequence in range(1, SEQUENCES):
            self._engine.copy_prefix(0, sequence, length)
        shared_s, apart_s = self._time(steps), math.nan
        if is_apart:
            for sequence in range(1, SEQUENCES):
                self._engine.truncate(sequence, 0)
                self._fill(sequence, length)
            apart_s = self._time(steps)
        for sequence in range(SEQUENCES):
            self._engine.truncate(sequence, 0)
        return Times(batch_s, one_s, shared_s, apart_s)

    def _fill(self, sequence: int, length: int) -> None:
        """Append copies of a block to a sequence, each with its keys turned to its positions."""
        memory = self._engine._memory
        for start in range(0, length, BLOCK):
            self._engine.unpark(_KEY, MOVER, BLOCK)
            llama_cpp.llama_memory_seq_add(memory, MOVER, 0, -1, start)
            llama_cpp.llama_memory_seq_cp(memory, MOVER, sequence, -1, -1)
            self._engine.truncate(MOVER, 0)

    def _time(self, slices: Sequence[Slice]) -> float:
        """Return the shortest time of a batch; the first one also turns keys, and does not count."""
        times_s: list[float] = []
        while len(times_s) < MOST_STEPS and sum(times_s[1:]) < LONG_ENOUGH_S:
            started_s = self._now_s()
            self._engine.decode(slices)
            times_s.append(self._now_s() - started_s)
            for part in slices:
                self._engine.truncate(part.sequence_id, part.position)
        return min(times_s[1:])  # other processes can only make it slower


def measure(given: argparse.Namespace) -> None:
    """Print a table for each length."""
    longest = max(given.lengths)
    apart = [SEQUENCES * length for length in given.lengths if length <= given.apart]
    cells = max([longest, *apart]) + 2 * BLOCK
    info = ModelInfo("bench", longest)
    first = LlamaCppEngine(given.model, info, options_of(given.layouts[0], cells, given))
    others = [first.beside(options_of(layout, cells, given)) for layout in given.layouts[1:]]
    clock = time.process_time if given.threads == 1 else time.perf_counter
    contexts = {
        layout: LongSequences(engine, clock) for layout, engine in zip(given.layouts, (first, *others), strict=True)
    }
    for layout, context in contexts.items():
        sys.stdout.write(f"{layout:<16} {context.bytes_per_token / 1024:.1f} KiB a token\n")
    for length in given.lengths:
        if length > first.model.context_window:
            continue
        best: dict[str, Times] = {}
        for _ in range(given.rounds):
            for layout, context in contexts.items():
                times = context.measure(length, is_apart=length <= given.apart)
                best[layout] = best.get(layout, times).best(times)
        _show(length, best, given.batch)
    for engine in (*others, first):
        engine.close()


def _show(length: int, best: dict[str, Times], batch: int) -> None:
    sys.stdout.write(f"{length:<16} prompt            one               8 shared          8 apart, tokens/s (ratio)\n")
    columns = ((batch, "batch_s"), (1, "one_s"), (SEQUENCES, "shared_s"), (SEQUENCES, "apart_s"))
    base = next(iter(best.values()))
    for layout, times in best.items():
        cells = (
            f"{tokens / getattr(times, name):8.1f} ({getattr(base, name) / getattr(times, name):4.2f})  "
            for tokens, name in columns
        )
        sys.stdout.write(f"{layout:<16} {''.join(cells)}\n")
    sys.stdout.flush()


def log_probabilities(engine: LlamaCppEngine, tokens: Sequence[int]) -> np.ndarray:
    """Return the log-probabilities of all next tokens after each token of a text."""
    rows = []
    for start in range(0, len(tokens), engine.max_batch_tokens):
        part = tokens[start : start + engine.max_batch_tokens]
        logits = engine.decode([Slice(0, part, start, len(part))]).astype(np.float64)
        top = logits.max(axis=1, keepdims=True)
        rows.append(logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))
    engine.truncate(0, 0)
    return np.concatenate(rows)


def compare(given: argparse.Namespace) -> None:
    """Print the perplexity of a text for each layout, and how far its predictions are from the first layout's."""
    first: np.ndarray | None = None
    for layout in given.layouts:
        engine = LlamaCppEngine(
            given.model, ModelInfo("bench", given.quality), options_of(layout, given.quality, given)
        )
        text = "\n\n".join(documents().values())[: 8 * given.quality]
        tokens = engine.tokenize(text, add_special=False, parse_special=False)[: given.quality]
        rows = log_probabilities(engine, tokens)
        engine.close()
        first = rows if first is None else first
        said = rows[np.arange(len(tokens) - 1), tokens[1:]]
        divergence = (np.exp(first) * (first - rows)).sum(axis=1).mean()
        sys.stdout.write(
            f"{layout:<18} perplexity {np.exp(-said.mean()):.3f} over {len(said)} tokens; divergence from "
            f"{given.layouts[0]} {divergence:.6f} nats; same first choice "
            f"{(rows.argmax(axis=1) == first.argmax(axis=1)).mean():.2%}\n"
        )
        sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="GGUF file; by default the bundled one")
    parser.add_argument("--lengths", type=int, nargs="+", default=(512, 1024, 2048, 4096, 8192, 32768))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--apart", type=int, default=8192, help="longest of sequences that share nothing")
    parser.add_argument("--batch", type=int, default=64, help="tokens of a prompt's batch; a divisor of 512")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quality", type=int, default=0, help="compare predictions over so many tokens instead")
    given = parser.parse_args()
    given.model = given.model or served_file()
    if given.quality:
        compare(given)
    else:
        measure(given)


if __name__ == "__main__":
    main()
