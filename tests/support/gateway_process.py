"""The HTTP gateway as a process of its own, before a real system."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

from tests.support.service_process import ROOT


@contextmanager
def serving_gateway(environment):
    """Run `pagantic serve` on a free port, and yield its URL; `gpt-4o` is the default model there."""
    command = [sys.executable, "-m", "gateway.cli.main", "serve", "--port", "0"]
    names = {"PAGANTIC_HTTP_MODELS": json.dumps({"gpt-4o": ""})}
    with subprocess.Popen(command, cwd=ROOT, env=environment | names, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process.stderr.readline().split()[1].rstrip(";")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM), process.stderr.read()
