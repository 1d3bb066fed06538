"""Spans where a collector is configured, in a process of its own: a process has one tracer provider."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import grpc
import pytest

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.telemetry.reporting import DISCONNECT_S, FLUSH_S
from tests.support import instrumented_call, traced_call
from tests.support.certificates import Authority
from tests.support.collector import collecting
from tests.support.ports import free_ports


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
from pagantic_common.telemetry import metrics, reporting

with reporting.reporting("tools", "{endpoint}", host="127.0.0.1", port=0):
    metrics.make_counter("tests.calls", "calls").add(1)
    for number in range({spans}):
        trace.get_tracer("tests").start_span(f"exported {{number}}").end()
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
            [sys.executable, "-c", EXPORTS.format(endpoint=f"{scheme}{address}", spans=2000)],
            env={**os.environ, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.crt")},
            check=True,
            timeout=60,
        )
    for name in (b"exported 0", b"exported 1999", b"tests.calls"):
        assert any(name in message for message in received)


@contextlib.contextmanager
def no_collector():
    (port,) = free_ports(1)
    yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def silent_collector():
    """Accept connections, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def hanging_collector():
    """Take every call, and never answer it."""
    released = threading.Event()
    with collecting(before=released.wait) as (address, _):
        try:
            yield address
        finally:
            released.set()


@contextlib.contextmanager
def unknown_collector():
    yield "no-such-host.invalid:4317"


@pytest.mark.parametrize("collector", [no_collector, silent_collector, hanging_collector, unknown_collector])
def test_a_process_ends_soon_where_its_collector_does_not_answer(collector):
    with collector() as address:
        command = [sys.executable, "-c", EXPORTS.format(endpoint=address, spans=2000)]
        # The SDK itself would wait for up to a minute.
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert FLUSH_S + DISCONNECT_S < 2
    assert "the collector did not take the last spans and metrics" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("collector", [no_collector, silent_collector, hanging_collector])
def test_a_service_ends_soon_where_its_collector_does_not_answer(collector, tmp_path):
    (port,) = free_ports(1)
    with collector() as address:
        settings = {"PAGANTIC_TOOLS_PORT": port, "PAGANTIC_OTLP_ENDPOINT": address, "PAGANTIC_TOOLS_DRAIN_S": 0}
        settings |= {"PAGANTIC_STATE": tmp_path, "PAGANTIC_SETTINGS_FILE": "none"}
        environment = os.environ | {name: str(value) for name, value in settings.items()}
        command = [sys.executable, "-m", "services.tools"]
        service = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            while "listening" not in service.stderr.readline():
                assert service.poll() is None
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                for _ in range(50):
                    rpc.ToolServiceStub(channel).ListTools(pb.ListToolsRequest())
            service.send_signal(signal.SIGTERM)
            _, log = service.communicate(timeout=10)
        finally:
            service.kill()
    assert service.returncode == 0
    assert "the collector did not take the last spans and metrics" in log
