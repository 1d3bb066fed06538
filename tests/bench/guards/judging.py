"""`python -m tests.bench.guards.judging --model FILE`: the guard `judge` with a model on a running system.

It sends each text of bastioncorpus as a chat that the guard reads, and prints how many it blocks and how long it takes.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from pagantic.common.v1 import error_pb2
from pagantic_common.client import Client, chat_request
from tests.bench.guards import packages
from tests.bench.guards.__main__ import quantiles, show
from tests.bench.guards.figures import figures_of
from tests.e2e.conftest import System


def measure(system, cases):
    """Print the quality of what was blocked, and the time of the model's decisions."""
    found, took_s = [], []
    with Client(system.address("orchestrator")) as client:
        for number, (text, is_injection) in enumerate(cases):
            request = chat_request(text, request_id=f"judged-{number}", max_tokens=1)
            response = client.execute(request)
            found.append((is_injection, response.error.code == error_pb2.ERROR_CODE_GUARD_BLOCKED))
            events = client.timeline(request.request_id)
            judged = next(event for event in events if event.HasField("inference_end"))
            took_s.append(judged.duration.ToMilliseconds() / 1000)
    show("judge, bastioncorpus", figures_of(found))
    show("judge, a look", quantiles(took_s))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; the default model without one")
    parser.add_argument("--threshold", type=float, default=0.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as unpacked, tempfile.TemporaryDirectory() as state:
        folder = packages.unpack(unpacked)
        system = System(Path(state))
        rule = {"plugin": "judge", "stages": ["input"], "options": {"threshold": options.threshold}, "timeout_s": 60}
        guards = Path(state) / "guards.json"
        guards.write_text(json.dumps({"guards": [rule]}), encoding="utf-8")
        system.environment["PAGANTIC_ORCHESTRATOR_GUARDS_FILE"] = str(guards)
        if options.model:
            system.environment["PAGANTIC_INFERENCE_MODEL_PATH"] = str(options.model.resolve())
        system.run(sys.executable, "-m", "deploy.local", "up")
        try:
            measure(system, packages.bastion(folder))
        finally:
            system.run(sys.executable, "-m", "deploy.local", "down")


if __name__ == "__main__":
    main()
