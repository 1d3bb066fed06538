"""One machine: starting, finding and stopping the system, whatever else happens to it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import grpc
import pytest

from deploy.local.supervision import Supervision
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.telemetry.names import LIVENESS
from tests.e2e.conftest import ROOT, System
from tests.e2e.test_system import request, structured
from tests.support.killing import is_gone, wait_until
from tests.support.ports import free_ports
from tests.support.service_process import ServiceProcess

UP = (sys.executable, "-m", "deploy.local", "up")
DEMO = (sys.executable, "-m", "deploy.local", "demo")
DOWN = (sys.executable, "-m", "deploy.local", "down")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A system that two commands start at the same time, with what they printed; tests stop it and start it again."""
    system = System(tmp_path_factory.mktemp("own"))
    commands = [
        subprocess.Popen(
            UP, cwd=ROOT, env=system.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    system.starts = [(command.communicate(timeout=100)[0], command.returncode) for command in commands]
    yield system
    system.run(*DOWN)


def plain(system):
    """The environment of a shell in which nothing is set but the state folder."""
    return {key: value for key, value in system.environment.items() if not key.startswith("PAGANTIC_")} | {
        "PAGANTIC_STATE": str(system.state)
    }


def run_plain(system, *command):
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=plain(system),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.whole
def test_two_starts_at_the_same_time_start_one_system(own):
    assert [code for _, code in own.starts] == [0, 0], own.starts
    assert sorted("already up on" in text for text, _ in own.starts) == [False, True], own.starts


def test_a_plain_shell_finds_what_runs(system):
    status = run_plain(system, "pagantic", "status", "--json")
    assert {area["address"] for area in json.loads(status.stdout)} == {system.address(area) for area in system.ports}
    assert status.returncode == 0
    assert "calculator" in run_plain(system, "pagantic", "tools").stdout
    assert run_plain(system, "pagantic", "chat", "Say hello.", "--max-tokens", "4").returncode == 0
    doctor = run_plain(system, "pagantic", "doctor").stdout
    assert re.search(r"model: .*SmolLM2-135M-Instruct\.Q4_1.*, loaded", doctor)  # Other tests load further models.
    assert "engine tuning: " in doctor
    assert run_plain(system, *UP).stdout.startswith("already up on")


@pytest.mark.parametrize("command", [UP, DEMO])
def test_other_settings_than_it_runs_with_are_refused(system, command, tmp_path):
    another = tmp_path / "another.gguf"
    another.touch()
    environment = {**system.environment, "PAGANTIC_INFERENCE_MODEL_PATH": str(another)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "with other settings: PAGANTIC_INFERENCE_MODEL_PATH; run `pagantic down` first" in done.stderr


def test_a_misspelt_setting_stops_a_start_and_a_service(system, tmp_path):
    misspelt = {"PAGANTIC_INFERENCE_CONTEXT_TOKEN": "64", "PAGANTIC_STATE": str(tmp_path)}
    for command, exit_code in ((UP, 3), ((sys.executable, "-m", "services.inference"), 78)):
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=system.environment | misspelt,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == exit_code
        assert "CONTEXT_TOKEN: no such setting; did you mean PAGANTIC_INFERENCE_CONTEXT_TOKENS?" in done.stderr


@pytest.mark.whole
def test_services_end_with_their_supervisor_and_all_starts_anew(own):
    supervision = Supervision(own.state)
    pids = [process.pid for process in supervision.processes().values()]
    daemon = supervision.daemon_pid()
    assert daemon, "0 would be the process group of the tests"
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: all(is_gone(pid) for pid in pids), "the services are gone", within_s=30)
    assert "already down" in run_plain(own, *DOWN).stdout
    own.run(*UP)
    assert own.run("pagantic", "status").returncode == 0


@pytest.mark.whole
def test_a_start_whose_supervisor_is_stopped_by_another_command_says_so_and_stops_nothing(own):
    own.run(*UP)
    own.run(*DOWN)
    log = own.state / "logs" / "inference.log"
    size = log.stat().st_size
    starting = subprocess.Popen(UP, cwd=ROOT, env=own.environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: log.stat().st_size > size, "inference starts", poll_s=0.01)
    own.run(*DOWN)
    told = starting.communicate(timeout=60)[1]
    assert starting.returncode == 1
    assert "the supervisor is gone" in told


@pytest.mark.parametrize("state", ["/proc/nope", "file"])
def test_a_state_folder_that_cannot_be_is_named(system, tmp_path, state):
    (tmp_path / "file").write_text("")
    environment = {**system.environment, "PAGANTIC_STATE": str(tmp_path / state)}
    done = subprocess.run(UP, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "set PAGANTIC_STATE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.whole
def test_requests_that_come_before_inference_listens_wait_for_it(system, tmp_path):
    (inference_port,) = free_ports(1)
    journal = f"sqlite:///{tmp_path / 'journal.sqlite3'}"
    orchestrator = ServiceProcess(
        "orchestrator",
        system,
        tmp_path / "o.log",
        until=LIVENESS,
        inference_address=f"127.0.0.1:{inference_port}",
        journal_url=journal,
        instance_id="waiting",
        connect_patience_s=60,
    )
    inference = ServiceProcess("inference", system, tmp_path / "i.log", port=inference_port)
    replies = []
    with orchestrator, grpc.insecure_channel(orchestrator.address) as channel:
        stub = rpc.OrchestratorServiceStub(channel)
        works = [request(max_tokens=4), structured()]
        callers = [threading.Thread(target=lambda w=w: replies.append(stub.Execute(w, timeout=60))) for w in works]
        for caller in callers:
            caller.start()
        time.sleep(2)
        assert not replies
        with inference:
            for caller in callers:
                caller.join(60)
    assert [reply.HasField("error") for reply in replies] == [False, False], replies


@pytest.mark.whole
def test_one_process_with_every_service_is_found_and_stopped_like_any_other(tmp_path):
    system = System(tmp_path / "host")
    command = [sys.executable, "-m", "deploy.local.host"]
    host = subprocess.Popen(command, cwd=ROOT, env=system.environment, stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout.readline().startswith("starting; state in ")
        assert host.stdout.readline() == f"serving on {system.address('orchestrator')}; Ctrl-C stops\n"
        assert "calculator" in run_plain(system, "pagantic", "tools").stdout
        wait_until(lambda: run_plain(system, "pagantic", "status").returncode == 0, "the host is ready", poll_s=0.5)
        assert run_plain(system, *UP).stdout.startswith("already up on")
        assert "all services stopped" in run_plain(system, *DOWN).stdout
        assert host.wait(60) == 0
    finally:
        host.kill()
        host.communicate()


@pytest.mark.whole
def test_a_host_that_cannot_start_names_the_service(tmp_path):
    system = System(tmp_path / "host")
    system.environment["PAGANTIC_INFERENCE_MODEL_PATH"] = "/no/such.gguf"
    done = system.run(sys.executable, "-m", "deploy.local.host", check=False)
    assert done.returncode == 78
    assert done.stderr.startswith("the inference service cannot start: CONFIG_NO_ENGINE")
