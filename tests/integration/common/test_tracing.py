"""Spans where a collector is configured, in a process of its own: a process has one tracer provider."""

import json
import os
import subprocess
import sys

import grpc
import pytest

from tests.support import instrumented_call, traced_call
from tests.support.certificates import Authority
from tests.support.collector import collecting


class Calls:
    """The spans and the log lines of some calls."""

    def __init__(self, output, log):
        self.spans = json.loads(output.splitlines()[-1])
        self.lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]

    def of(self, method):
        """Return the span of the caller of a method, and that of its service."""
        spans = {span["kind"]: span for span in self.spans if span["name"].endswith(method)}
        return spans["CLIENT"], spans["SERVER"]


def run(module, *arguments):
    command = [sys.executable, "-m", module.__name__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return Calls(done.stdout, done.stderr)


@pytest.fixture(scope="module")
def calls():
    return run(traced_call)


@pytest.fixture(scope="module")
def instrumented(tmp_path_factory):
    """The spans of a caller whose own stubs OpenTelemetry's package instruments, and of the orchestrator."""
    return run(instrumented_call, str(tmp_path_factory.mktemp("journal")))


def test_with_a_collector_every_call_is_a_span_whose_parent_is_the_callers(calls):
    client, server = calls.of("ToolService/ListTools")
    assert client["trace_id"] == server["trace_id"]
    assert server["parent_id"] == client["span_id"]
    assert client["error_type"] is server["error_type"] is None


def test_a_call_that_fails_has_failed_on_both_sides(calls):
    client, server = calls.of("ToolService/SearchTools")
    assert client["has_failed"]
    assert (client["error_type"], server["error_type"]) == ("Internal", "Internal")


def test_a_stream_that_its_reader_closes_has_failed_on_neither_side(calls):
    client, server = calls.of("ToolService/ExecuteToolStream")
    assert client["error_type"] is server["error_type"] is None


def test_the_log_line_of_a_failure_has_the_trace_of_the_call(calls):
    (line,) = (line for line in calls.lines if line["event"] == "unexpected error")
    _, server = calls.of("ToolService/SearchTools")
    assert line["trace_id"] == server["trace_id"]
    assert line["error_id"]


@pytest.mark.parametrize("method", ["OrchestratorService/Execute", "OrchestratorService/ExecuteStream"])
def test_the_span_of_an_instrumented_caller_is_the_parent_of_everything_below(instrumented, method):
    client, server = instrumented.of(method)
    assert (client["parent_id"], server["parent_id"]) == (None, client["span_id"])
    below = [span for span in instrumented.spans if span["trace_id"] == client["trace_id"] and span is not client]
    assert {span["name"] for span in below} >= {"invoke_workflow chat", "state PREPARE", "state EXECUTE"}
    assert {span["parent_id"] for span in below} <= {client["span_id"], *(span["span_id"] for span in below)}


def test_the_calls_of_an_instrumented_caller_are_separate_traces_and_no_span_is_outside(instrumented):
    roots = [span for span in instrumented.spans if span["parent_id"] is None]
    assert [span["kind"] for span in roots] == ["CLIENT", "CLIENT"]
    assert {span["trace_id"] for span in instrumented.spans} == {span["trace_id"] for span in roots}


EXPORTS = """
from opentelemetry import trace
from pagantic_common.telemetry import metrics, reporting, tracing

reporting.set_up_tracing("tools", "{endpoint}")
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
