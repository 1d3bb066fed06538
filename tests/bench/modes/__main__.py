"""`python -m tests.bench.modes`: what each mode buys, on public sets, through `pagantic eval`.

`run` fetches models and sets, starts a system, and evaluates blocks of samples in all arms; the same command continues
after a stop, and a higher --blocks adds samples. `report` prints the tables, and draws the plots of deploy/docs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.modes import report
from tests.bench.modes.packages import MODELS, fetch_model, fetch_set
from tests.bench.modes.suites import suite_of
from tests.bench.modes.tasks import TASKS, samples_of
from tests.e2e.conftest import System

CASE_TIMEOUT_S = 600  # A busy machine is slow, which is no failure of the mode.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagantic" / "modes"
START_S = 600


def main() -> None:
    """Run, or report; SIGTERM ends the system that was started, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of models, sets and results")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--blocks", type=int, default=3, help="blocks of 10 samples")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--plots", type=Path, help="folder for the plots")
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    if given.what == "run":
        run(given)
    report.write(given.cache / "results", given.tasks, given.models, given.plots)


def run(given: argparse.Namespace) -> None:
    """Evaluate every task with every model, block after block, so that a stop leaves all of them equally far."""
    samples = {name: samples_of(TASKS[name], fetch_set(name, given.cache)) for name in given.tasks}
    models = {name: fetch_model(name) for name in given.models}
    with _system(given.cache / "state", models) as system:
        for model in given.models:  # No case shall wait for the model to load.
            system.run(
                "pagantic",
                "chat",
                "Hello.",
                "--model",
                model,
                "--max-tokens",
                "1",
                "--timeout",
                START_S,
                timeout_s=START_S,
            )
        for block in range(given.blocks):
            for task in given.tasks:
                for model in given.models:
                    name = report.name_of(task, model, block)
                    suite = given.cache / "suites" / f"{name}.json"
                    suite.parent.mkdir(exist_ok=True)
                    suite.write_text(json.dumps(suite_of(name, TASKS[task], samples[task], block)))
                    _evaluate(system, suite, name, model, given)


@contextmanager
def _system(state: Path, models: dict[str, Path]) -> Iterator[System]:
    state.mkdir(exist_ok=True)
    system = System(state)
    system.environment |= {
        "PAGANTIC_INFERENCE_MODEL_PATH": str(next(iter(models.values()))),
        "PAGANTIC_INFERENCE_MODELS": json.dumps({name: str(path) for name, path in models.items()}),
        "PAGANTIC_INFERENCE_EMBEDDING_MODEL": "none",
        "PAGANTIC_INFERENCE_TUNING": "false",
    }
    system.run(sys.executable, "-m", "deploy.local", "up", timeout_s=START_S)
    try:
        yield system
    finally:
        system.run(sys.executable, "-m", "deploy.local", "down")


def _evaluate(system: System, suite: Path, name: str, model: str, given: argparse.Namespace) -> None:
    folder = given.cache / "results"
    if report.is_complete(folder / f"{name}.jsonl"):
        return
    command = ["pagantic", "eval", str(suite), "--name", name, "--model", model, "--parallel", str(given.parallel)]
    command += ["--folder", str(folder), "--timeout", str(CASE_TIMEOUT_S)]
    subprocess.run(command, env=system.environment, check=True)


if __name__ == "__main__":
    main()
