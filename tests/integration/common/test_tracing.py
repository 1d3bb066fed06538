"""Spans where a collector is configured, in a process of its own: a process has one tracer provider."""

import json
import os
import subprocess
import sys

import grpc
import pytest

from tests.support import traced_call
from tests.support.certificates import Authority
from tests.support.collector import collecting


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


EXPORTS = """
from opentelemetry import trace
from pagantic_common.telemetry import metrics, tracing

tracing.set_up_tracing("tools", "{endpoint}")
metrics.set_up_metrics("tools", "{endpoint}", host="127.0.0.1", port=0)
metrics.make_counter("tests.calls", "calls").add(1)
trace.get_tracer("tests").start_span("exported").end()
tracing.shut_down_tracing()
metrics.shut_down_metrics()
"""


@pytest.mark.parametrize("has_tls", [False, True])
def test_spans_and_metrics_reach_a_collector_in_plain_text_and_with_tls(has_tls, tmp_path):
    authority, credentials, scheme = Authority(), None, ""
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    if has_tls:
        chain, key = authority.issue()
        credentials, scheme = grpc.ssl_server_credentials([(key, chain)]), "https://"
    with collecting(credentials) as (address, received):
        subprocess.run(
            [sys.executable, "-c", EXPORTS.format(endpoint=f"{scheme}{address}")],
            env={**os.environ, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.crt")},
            check=True,
            timeout=60,
        )
    for name in (b"exported", b"tests.calls"):
        assert any(name in message for message in received)
