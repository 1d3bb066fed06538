"""The inference service with a stopwatch around the parts of a decode step.

`python -m tests.bench.step.timed_service` serves as `services.inference` does. At SIGUSR1 it appends a line of JSON to
the file of TIMES_FILE: the seconds and calls of each part so far, and the processor time of each kind of thread.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.inference.adapters.openmp import set_spinning
from services.inference.settings import InferenceSettings

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TASKS = Path("/proc/self/task")


class Stopwatch:
    """Adds up the time of functions, without the time of the timed functions that they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inner = threading.local()

    def time(self, owner: Any, name: str, part: str | Callable[..., str]) -> None:
        """Replace a function of a class or a module by one that is timed as a part, which may follow its arguments."""
        function = getattr(owner, name)
        name_of = part if callable(part) else lambda *_: part

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            outer_s = getattr(self._inner, "seconds", 0.0)
            self._inner.seconds = 0.0
            started_s = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                whole_s = time.perf_counter() - started_s
                named = name_of(*arguments)
                self.seconds[named] += whole_s - self._inner.seconds
                self.calls[named] += 1
                self._inner.seconds = outer_s + whole_s

        setattr(owner, name, timed)


class Threads:
    """Knows what the threads of this process are for."""

    def __init__(self) -> None:
        self._kinds = {os.getpid(): "event loop"}

    def watch(self, module: Any) -> None:
        """Note the thread of the next `llama_decode`, and the workers that it starts."""
        decode = module.llama_decode

        def noting(*arguments: Any) -> Any:
            module.llama_decode = decode
            before = {task.name for task in _TASKS.iterdir()}
            code = decode(*arguments)
            workers = {int(task.name) for task in _TASKS.iterdir() if task.name not in before}
            self._kinds |= dict.fromkeys(workers, "workers of llama.cpp") | {threading.get_native_id(): "engine"}
            return code

        module.llama_decode = noting

    def processor_s(self) -> dict[str, float]:
        """Return the processor time of the threads of each kind."""
        used: dict[str, float] = defaultdict(float)
        for task in _TASKS.iterdir():
            fields = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            used[self._kinds.get(int(task.name), "other threads")] += (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        return used


class Drafts:
    """Counts the tokens that were guessed from prompts, and those of them that were right."""

    def __init__(self) -> None:
        self.drafted = 0
        self.accepted = 0

    def watch(self, counts: Any) -> None:
        """Count with a class of counts, too."""
        add = counts.add

        def counting(one: Any, drafted: int, accepted: int) -> None:
            self.drafted += drafted
            self.accepted += accepted
            add(one, drafted, accepted)

        counts.add = counting


def _time_parts(watch: Stopwatch, threads: Threads, drafts: Drafts) -> None:
    # llama.cpp's OpenMP reads the environment when the library loads.
    set_spinning(InferenceSettings().spin_count)
    import llama_cpp  # noqa: PLC0415

    from services.inference import servicer  # noqa: PLC0415
    from services.inference.adapters.llama.engine import LlamaCppEngine, TokenBatch  # noqa: PLC0415
    from services.inference.adapters.llguidance_constraints import LlguidanceMatcher  # noqa: PLC0415
    from services.inference.app import engine_loop  # noqa: PLC0415
    from services.inference.app.generation import AnswerStream  # noqa: PLC0415
    from services.inference.core.decoding.output import SampledOutput  # noqa: PLC0415
    from services.inference.core.scheduling.batching import Scheduler  # noqa: PLC0415
    from services.inference.core.scheduling.drafting import DraftCount  # noqa: PLC0415

    watch.time(llama_cpp, "llama_decode", lambda _, batch: f"decode {batch.n_tokens}")
    watch.time(engine_loop, "apply_operation", lambda _, operation, *__: type(operation).__name__.lower())
    watch.time(LlamaCppEngine, "decode", "find the logits")
    watch.time(TokenBatch, "fill", "fill the batch")
    watch.time(LlguidanceMatcher, "mask", "mask")
    watch.time(SampledOutput, "rank", "rank a row")
    watch.time(SampledOutput, "accept", "accept a token")
    watch.time(Scheduler, "decide", "decide")
    watch.time(Scheduler, "apply", "apply")
    watch.time(engine_loop.EngineLoop, "_hand_out", "hand out")
    watch.time(engine_loop.EngineLoop, "_next_work", "wait for work")
    watch.time(engine_loop.EngineLoop, "_carry_out", "rest of the step")
    watch.time(AnswerStream, "put", "event loop: take an event")
    watch.time(servicer, "event_to_proto", "event loop: encode a message")
    threads.watch(llama_cpp)
    drafts.watch(DraftCount)


def main() -> None:
    """Serve."""
    watch, threads, drafts = Stopwatch(), Threads(), Drafts()
    _time_parts(watch, threads, drafts)

    def report(*_: Any) -> None:
        line = {
            "at_s": time.perf_counter(),
            "seconds": watch.seconds,
            "calls": watch.calls,
            "processor_s": threads.processor_s(),
            "drafted_tokens": drafts.drafted,
            "accepted_tokens": drafts.accepted,
        }
        with Path(os.environ["TIMES_FILE"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    signal.signal(signal.SIGUSR1, report)
    from services.inference.__main__ import main as serve  # noqa: PLC0415

    serve()


if __name__ == "__main__":
    main()
