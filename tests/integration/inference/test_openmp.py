"""The engine's real threads: whether they spin after a step, and whether they end."""

import os
import subprocess
import sys

import pytest

ROUNDS = 10**10  # minutes, so that a thread that spins is seen in the processor's time
SCRIPT = f"""
import sys, time
import psutil
from services.inference.adapters.openmp import SpinSwitch, release_threads, set_spinning

set_spinning({ROUNDS})
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.core.scheduling.batch import Slice

before = psutil.Process().num_threads()
options = EngineOptions(context_tokens=64, max_sequences=1, threads=2)
engine = LlamaCppEngine(find_default_model(), ModelInfo("model", 64), options)
process, switch = psutil.Process(), SpinSwitch()


def step():
    engine.truncate(0, 0)
    engine.decode([Slice(0, [1], 0, 1)])


def has_threads(is_right):
    # A thread that ends is gone a moment later.
    for _ in range(200):
        if is_right(process.num_threads()):
            return True
        time.sleep(0.05)
    return False


def spins():
    # Whether the process uses the processor while it has nothing to do; a busy machine gives it little.
    time.sleep(0.3)
    for _ in range(20):
        before_s = time.process_time()
        time.sleep(0.1)
        if time.process_time() - before_s > 0.01:
            return True
    return False

{{body}}
"""
BOTH_WAYS = """
step()
assert spins()
switch.set_long(False)
switch.set_long(False)
step()
assert not spins()
switch.set_long(True)
switch.set_long(True)
step()
assert spins()
switch.set_long(False)
step()
assert not spins()
"""
RELEASED = """
alone = process.num_threads()
assert alone == before  # Threads that repack weights are given back.
step()
assert has_threads(lambda count: count == alone + 1)
release_threads()
assert has_threads(lambda count: count == alone)
assert not spins()
step()
assert has_threads(lambda count: count == alone + 1)
switch.set_long(False)
assert has_threads(lambda count: count > alone + 1)
switch.set_long(True)
assert has_threads(lambda count: count == alone + 1)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp is there on Linux alone")


@pytest.mark.parametrize("body", [BOTH_WAYS, RELEASED], ids=["both ways", "released"])
def test_threads_spin_and_end_as_they_are_told(body):
    # Two processors are what libgomp counts, wherever this runs.
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    pinned = f"import os; os.sched_setaffinity(0, {{{processors}}})\n"
    program = [sys.executable, "-c", pinned + SCRIPT.format(body=body)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
