"""Spans where a collector is configured, in a process of its own: a process has one tracer provider."""

import json
import subprocess
import sys

from tests.support import traced_call


def test_with_a_collector_every_call_is_a_span_whose_parent_is_the_callers():
    done = subprocess.run(
        [sys.executable, "-m", traced_call.__name__], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    spans = {span["kind"]: span for span in json.loads(done.stdout.splitlines()[-1])}
    client, server = spans["CLIENT"], spans["SERVER"]
    assert client["trace_id"] == server["trace_id"]
    assert server["parent_id"] == client["span_id"]
    assert server["name"].endswith("ToolService/ListTools")
