"""`python -m tests.measures.hops [--files]`: count the calls of our own functions that one CHAT makes, also by file.

Every service runs in this process with a profile hook, over real sockets and the real model; the client is a process of
its own. A call counts once, however often a generator or a coroutine is resumed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
OURS = tuple(f"{ROOT / package}/" for package in ("services", "gateway", "pagantic_common", "deploy"))
CLIENT = """
import os, signal, sys, time
from pagantic_common.client import Client
with Client(sys.argv[1], timeout_s=120) as client:
    client.chat("Say hi.", max_tokens=5, temperature=0)
    os.kill(int(sys.argv[2]), signal.SIGUSR1)
    time.sleep(0.05)
    client.chat("Say one word.", max_tokens=5, temperature=0)
    time.sleep(0.3)
    os.kill(int(sys.argv[2]), signal.SIGUSR2)
    time.sleep(1)
    os.kill(int(sys.argv[2]), signal.SIGTERM)
"""


class Tracer:
    """Collects frames of our functions between `start` and `stop`; a frame that is kept keeps its id."""

    def __init__(self):
        self._frames = None
        self.calls = []

    def start(self, *_signal):
        self._frames = {}

    def stop(self, *_signal):
        frames, self._frames = self._frames, None
        self.calls = [frame.f_code for frame in frames.values()]

    def __call__(self, frame, event, _argument):
        frames = self._frames
        if frames is not None and event == "call" and frame.f_code.co_filename.startswith(OURS):
            frames[id(frame)] = frame


def line_of(calls):
    files = {code.co_filename for code in calls}
    return f"a CHAT of five tokens: {len(calls)} calls of {len(set(calls))} functions in {len(files)} files"


def main():
    tracer = Tracer()
    signal.signal(signal.SIGUSR1, tracer.start)
    signal.signal(signal.SIGUSR2, tracer.stop)
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "PAGANTIC_SETTINGS_FILE": "none",
            "PAGANTIC_STATE": folder,
            "XDG_CACHE_HOME": f"{folder}/cache",
            "PAGANTIC_ORCHESTRATOR_PORT": str(port),
            "PAGANTIC_INFERENCE_TUNING": "false",
            "PAGANTIC_INFERENCE_SELF_CHECK": "false",
        }
        client = threading.Thread(target=run_client, args=(f"127.0.0.1:{port}",), daemon=True)
        client.start()
        threading.setprofile(tracer)
        sys.setprofile(tracer)
        from deploy.local.host import main as serve  # noqa: PLC0415 - the settings are read at the import

        serve()
        sys.setprofile(None)
        client.join()
    sys.stdout.write(line_of(tracer.calls) + "\n")
    if "--files" in sys.argv:
        for name, count in Counter(code.co_filename for code in tracer.calls).most_common():
            sys.stdout.write(f"{count:5} {Path(name).relative_to(ROOT)}\n")
    return 0


def run_client(address):
    """Send the requests once the host listens; it ends this process's host by its signals."""
    from pagantic_common.client import Client  # noqa: PLC0415 - it is imported beside the host

    with Client(address, timeout_s=5) as client:
        while not _is_ready(client):
            time.sleep(0.2)
    subprocess.run([sys.executable, "-c", CLIENT, address, str(os.getpid())], check=True, timeout=120)


def _is_ready(client):
    try:
        client.list_models()
    except Exception:  # noqa: BLE001 - whatever it is, it is not ready yet
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
