"""Each alert fires in a real Prometheus when the thing that it watches is broken in a real system.

Windows and waits of the alerts are shorter here, and the thresholds of time stricter: `tests/support/prometheus.py`. A
break gives what is to be done again and again: a rate counts no failure that was there when its series began.
"""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
import yaml

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.e2e.conftest import AREAS, System
from tests.support.certificates import Authority, TlsFiles, now
from tests.support.gateway_process import serving_gateway
from tests.support.killing import Processes, wait_until
from tests.support.live_requests import CONTEXT, REQUIRED, TALE, ingest, request
from tests.support.needs import ALERTS, PROMETHEUS, skip_without
from tests.support.ports import free_ports
from tests.support.prometheus import find_prometheus, hurried, running_prometheus
from tests.support.service_process import ServiceProcess
from tests.support.write_dashboards import DASHBOARDS, dashboard
from tests.unit.deploy.test_observability import metrics_of

RULES = Path(__file__).parents[2] / "deploy" / "observability" / "alerts.yaml"
NOWHERE = "127.0.0.1:9"  # a port that nobody listens on
CHAT = execution_pb2.MODE_CHAT
READ_S = 3.0  # Prometheus reads every second
TMPFS_BYTES = 80 * 1024 * 1024

pytestmark = pytest.mark.timeout(300)


class Watched:
    """A running system, and the Prometheus that reads it; `after` is done when the alert at hand has fired."""

    def __init__(self, system, ports, prometheus, folder, stack):
        self.system = system
        self.ports = ports
        self.prometheus = prometheus
        self.folder = folder
        self.after = []
        self._stack = stack

    def add(self, area, *, tls_files=None, **settings):
        """Run one more service beside the system, and read its metrics."""
        (port,) = free_ports(1)
        log = self.folder / f"{area}-{port}.log"
        if tls_files is not None:
            settings |= tls_files.settings
        process = ServiceProcess(area, self.system, log, metrics_port=port, **settings)
        self._stack.callback(process.close)
        process.start()
        self.prometheus.watch(f"127.0.0.1:{port}")
        return process

    def execute(self, address=None, count=1, text="Say hello.", max_tokens=4, **fields):
        """Send requests, one after the other; what becomes of them shows in the metrics."""
        with grpc.insecure_channel(address or self.system.address("orchestrator")) as channel:
            stub = rpc.OrchestratorServiceStub(channel)
            for _ in range(count):
                asked = request(text, CHAT, max_tokens=max_tokens, timeout_s=20, **fields)
                with suppress(grpc.RpcError):
                    stub.Execute(asked, timeout=30)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    if not os.environ.get("PAGANTIC_TEST_ALERTS"):
        skip_without(ALERTS)
    program = find_prometheus()
    if program is None:
        skip_without(PROMETHEUS)
    folder = tmp_path_factory.mktemp("alerts")
    system = System(tmp_path_factory.mktemp("state"))
    ports = dict(zip(AREAS, free_ports(len(AREAS)), strict=True))
    system.environment |= {f"PAGANTIC_{area.upper()}_METRICS_PORT": str(port) for area, port in ports.items()}
    system.environment["PACED_STEP_S"] = "40"
    with ExitStack() as stack:
        system.run(sys.executable, "-m", "deploy.local", "up")
        stack.callback(system.run, sys.executable, "-m", "deploy.local", "down")
        rules = hurried(RULES.read_text(encoding="utf-8"))
        prometheus = stack.enter_context(running_prometheus(program, rules, folder))
        for port in ports.values():
            prometheus.watch(f"127.0.0.1:{port}")
        yield Watched(system, ports, prometheus, folder, stack)


def test_nothing_fires_in_a_system_that_works_but_what_the_hurry_makes_slow(watched):
    watched.execute(count=20)
    time_of_alerts = {"PaganticSlow", "PaganticFirstTokenSlow"}
    assert watched.prometheus.query("pagantic_orchestrator_execution_duration_seconds_count > 0")
    time.sleep(READ_S)
    assert watched.prometheus.firing() <= time_of_alerts


def frozen(watched):
    """A service is frozen: it keeps its connections and answers nobody."""
    Processes(watched.system).stop("rerank")


def started_again(watched):
    """A service dies, and dies again."""
    processes = Processes(watched.system)
    address = f"127.0.0.1:{watched.ports['constraint']}"
    for count in (1, 2):
        processes.kill("constraint")
        changes = f'changes(process_start_time_seconds{{instance="{address}"}}[60s]) >= {count}'
        wait_until(lambda: watched.prometheus.query(changes), "Prometheus reads the new process")  # noqa: B023


def unreachable(watched):
    """An orchestrator does not reach a service."""
    lost = watched.add(
        "orchestrator", until="liveness", tools_address=NOWHERE, connect_patience_s=1, **_journal(watched)
    )
    return partial(watched.execute, lost.address, count=4, tools=["calculator"])


def without_inference(watched):
    """An orchestrator does not reach its engine, and executions fail."""
    return partial(watched.execute, _without_inference(watched).address)


def failing_calls(watched):
    """An orchestrator does not reach its engine, and calls fail that are no executions."""
    address = _without_inference(watched).address

    def call():
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            rpc.OrchestratorServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=10)

    return call


def stuck(watched):
    """The engine does not come back from a step, while requests wait."""
    engine = watched.add("inference", module="tests.bench.routing.paced_service", **_engine())
    _ask_in_the_background(watched, engine, 1)


def overrun(watched):
    """More requests come than the queue takes."""
    engine = watched.add("inference", module="tests.bench.routing.paced_service", **_engine(), queue_capacity=1)
    _ask_in_the_background(watched, engine, 8)


def at_its_limit(watched):
    """An orchestrator runs as many executions as it may."""
    engine = watched.add("inference", module="tests.bench.routing.paced_service", **_engine())
    busy = watched.add("orchestrator", inference_address=engine.address, max_running=1, **_journal(watched))
    threading.Thread(target=watched.execute, args=(busy.address,), daemon=True).start()


def slow(watched):
    """Prompts and answers are long."""
    words = " ".join(str(number) for number in range(100))
    return lambda: watched.execute(text=f"{os.urandom(8).hex()} {words}", max_tokens=24)


def full(watched):
    """The volume of the journal is full."""
    volume = watched.folder / "volume"
    volume.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", volume], check=True)
    watched._stack.callback(subprocess.run, ["/bin/umount", "-l", volume], check=True)
    writer = watched.add(
        "orchestrator", journal_url=f"sqlite:///{volume / 'journal.sqlite3'}", journal_min_free_bytes=0
    )
    watched.execute(writer.address)
    with pytest.raises(OSError, match="No space"):
        (volume / "filler").write_bytes(bytes(TMPFS_BYTES))
    watched.execute(writer.address)


def spent(watched):
    """A tenant has used its budget up."""
    watched.system.run("pagantic", "budgets", "set", "default", "--tokens", "1", "--per", "hour")
    watched.after.append(partial(watched.system.run, "pagantic", "budgets", "set", "default"))
    return watched.execute


def late_guard(watched):
    """A guard never ends within its time, and lets texts pass."""
    file = watched.folder / "guards.json"
    late = {"plugin": "injection", "stages": ["input"], "timeout_s": 1e-6, "on_failure": "open"}
    file.write_text(json.dumps({"guards": [late]}), encoding="utf-8")
    guarded = watched.add("orchestrator", guards_file=str(file), **_journal(watched))
    return partial(watched.execute, guarded.address)


def near_its_end(watched):
    """A certificate expires in three days."""
    files = TlsFiles(watched.folder / "tls")
    authority = Authority()
    files.write(authority.issue(end=now() + timedelta(days=3)), authority)
    watched.add("constraint", until=None, tls_files=files)


def behind_a_dead_orchestrator(watched):
    """The gateway's orchestrator does not answer."""
    (port,) = free_ports(1)
    environment = watched.system.environment | {"PAGANTIC_ADDRESS": NOWHERE, "PAGANTIC_HTTP_METRICS_PORT": str(port)}
    url = watched._stack.enter_context(serving_gateway(environment))
    watched.prometheus.watch(f"127.0.0.1:{port}")
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]}

    def ask():
        assert httpx.post(f"{url}/chat/completions", json=body, timeout=60).is_server_error

    return ask


WHOLE = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}
# A metric is there once something was measured. This system has no guards, prices, budgets, certificates, second
# replica or folder of prefixes, and the other ones count what goes wrong.
UNUSED = {
    "pagantic_inference_prefix_dropped_blocks_total",
    "pagantic_inference_prefix_read_tokens_total",
    "pagantic_inference_prefix_written_tokens_total",
    "pagantic_orchestrator_budget_check_duration_seconds_bucket",
    "pagantic_orchestrator_cost_usd_total",
    "pagantic_orchestrator_guard_failures_total",
    "pagantic_orchestrator_guard_findings_total",
    "pagantic_orchestrator_journal_failed_writes_total",
    "pagantic_orchestrator_rerouted_calls_total",
    "pagantic_rpc_open_circuits",
    "pagantic_rpc_refused_calls_total",
    "pagantic_rpc_retried_calls_total",
    "pagantic_rpc_waiting_calls",
    "pagantic_tls_certificate_expiry",
    "pagantic_workers_killed_total",
}
BREAKS = {
    "PaganticCertificateExpires": near_its_end,
    "PaganticCircuitOpen": unreachable,
    "PaganticExecutionsFail": without_inference,
    "PaganticCallsFail": failing_calls,
    "PaganticHttpFails": behind_a_dead_orchestrator,
    "PaganticSlow": slow,
    "PaganticFirstTokenSlow": slow,
    "PaganticBudgetSpent": spent,
    "PaganticGuardFails": late_guard,
    "PaganticEngineStuck": stuck,
    "PaganticQueueFull": overrun,
    "PaganticFull": at_its_limit,
    "PaganticJournal": full,
    "PaganticRestarts": started_again,
    "PaganticReplicaGone": frozen,
}


def test_every_alert_has_its_break():
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    assert {rule["alert"] for rule in group["rules"]} == set(BREAKS)


@pytest.mark.parametrize("alert", BREAKS)
def test_an_alert_fires_when_what_it_watches_breaks(watched, alert):
    wait_until(lambda: alert not in watched.prometheus.firing(), f"{alert} is silent", poll_s=0.5)
    again = BREAKS[alert](watched) or (lambda: None)

    def fires():
        again()
        return alert in watched.prometheus.firing()

    try:
        wait_until(fires, f"{alert} fires", poll_s=0.5)
    finally:
        while watched.after:
            watched.after.pop()()


def test_prometheus_reads_every_metric_of_the_dashboards(watched):
    ingest(watched.system.address("context"))
    environment = watched.system.environment | {"PAGANTIC_HTTP_METRICS_PORT": str(free_ports(1)[0])}
    with serving_gateway(environment) as url:
        watched.prometheus.watch(f"127.0.0.1:{environment['PAGANTIC_HTTP_METRICS_PORT']}")
        for body in (WHOLE, WHOLE | {"stream": True}):
            assert httpx.post(f"{url}/chat/completions", json=body, timeout=60).is_success
        watched.execute(tools=["calculator"], tool_choice=REQUIRED, schema=TALE, context=CONTEXT, max_tokens=64)
        panels = [panel for name in DASHBOARDS for panel in dashboard(name)["panels"] if panel["type"] != "row"]
        used = {name for panel in panels for target in panel["targets"] for name in metrics_of(target["expr"])}
        time.sleep(READ_S)
        missing = used - watched.prometheus.metric_names()
    assert missing <= UNUSED, sorted(missing - UNUSED)
    for expression in (target["expr"] for panel in panels for target in panel["targets"]):
        watched.prometheus.query(expression.replace("$instance", ".*").replace("$__rate_interval", "10s"))


def _without_inference(watched):
    settings = {"inference_address": NOWHERE, "connect_patience_s": 0, **_journal(watched)}
    return watched.add("orchestrator", until="liveness", **settings)


def _journal(watched):
    return {"journal_url": f"sqlite:///{watched.folder / 'journal.sqlite3'}"}


def _engine():
    return {"tuning": "false", "self_check": "false", "embedding_model": "none", "drafting": "false", "max_running": 1}


def _ask_in_the_background(watched, engine, count):
    """Have requests wait at an engine that does not answer in time."""
    asking = watched.add("orchestrator", inference_address=engine.address, busy_patience_s=0, **_journal(watched))
    for _ in range(count):
        threading.Thread(target=watched.execute, args=(asking.address,), daemon=True).start()
