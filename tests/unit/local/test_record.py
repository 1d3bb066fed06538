"""What is remembered of a running system."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from deploy.local import child, record
from deploy.local.areas import read_areas, read_gateway
from deploy.local.child import OWNER_VARIABLE, owner_options
from deploy.local.supervision import stop_leftovers
from pagantic_common.run import command
from tests.support.killing import is_gone

SET = {"PAGANTIC_INFERENCE_MODEL_PATH": "/m", "PAGANTIC_TOOLS_PORT": "6006", "PAGANTIC_STATE": "/s", "PATH": "p"}


def test_what_runs_is_found_with_its_addresses_by_who_has_another_environment(tmp_path):
    record.save(tmp_path, os.getpid(), read_areas(SET), SET, is_host=False)
    found = record.load(tmp_path)
    assert found.areas == read_areas(SET)
    assert (tmp_path / record.FILE).stat().st_mode & 0o077 == 0
    assert "/m" not in (tmp_path / record.FILE).read_text()  # a value may be secret


@pytest.mark.parametrize(
    ("environment", "differing"),
    [
        ({}, []),  # whoever sets nothing takes what runs
        (SET, []),
        ({**SET, "PAGANTIC_INFERENCE_MODEL_PATH": "/other"}, ["PAGANTIC_INFERENCE_MODEL_PATH"]),
        ({"PAGANTIC_RERANK_PORT": "7000"}, ["PAGANTIC_RERANK_PORT"]),
        ({"PAGANTIC_ADDRESS": "a:1", "PAGANTIC_CONTEXT_ADDRESS": "b:1"}, []),  # only commands read these
    ],
)
def test_settings_that_differ_from_what_runs_are_named(tmp_path, environment, differing):
    record.save(tmp_path, os.getpid(), read_areas(SET), SET, is_host=False)
    assert record.load(tmp_path).differing(environment) == differing


@pytest.mark.parametrize(
    ("running", "environment", "differing"),
    [
        ({}, {"PAGANTIC_SERVE_HTTP": "off"}, []),
        ({"PAGANTIC_SERVE_HTTP": "0"}, {"PAGANTIC_SERVE_HTTP": ""}, []),
        ({"PAGANTIC_SERVE_HTTP": "on"}, {"PAGANTIC_SERVE_HTTP": "1"}, []),
        ({}, {"PAGANTIC_SERVE_HTTP": "on"}, ["PAGANTIC_SERVE_HTTP"]),
        ({"PAGANTIC_SERVE_HTTP": "on"}, {"PAGANTIC_SERVE_HTTP": "off"}, ["PAGANTIC_SERVE_HTTP"]),
        (
            {"PAGANTIC_SERVE_HTTP": "on"},
            {"PAGANTIC_SERVE_HTTP": "on", "PAGANTIC_HTTP_AUTH": "keys"},
            ["PAGANTIC_HTTP_AUTH"],
        ),
        ({"PAGANTIC_SERVE_HTTP": "on"}, {"PAGANTIC_HTTP_AUTH": "keys"}, ["PAGANTIC_HTTP_AUTH"]),
        ({}, {"PAGANTIC_HTTP_AUTH": "keys"}, []),  # those of a gateway that somebody starts alone
        ({"PAGANTIC_SERVE_HTTP": "on", "PAGANTIC_HTTP_AUTH": "keys"}, {"PAGANTIC_HTTP_AUTH": "keys"}, []),
    ],
)
def test_the_settings_of_the_gateway_count_where_it_runs(tmp_path, running, environment, differing):
    record.save(tmp_path, os.getpid(), read_areas({}), running, is_host=False, doors=read_gateway(running))
    assert record.load(tmp_path).differing(environment) == differing


def test_a_process_that_is_gone_or_whose_pid_another_has_runs_nothing(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    record.save(tmp_path, ended.pid, read_areas({}), {}, is_host=True)
    ended.wait()
    assert record.load(tmp_path) is None
    record.save(tmp_path, os.getpid(), read_areas({}), {}, is_host=True)
    file = tmp_path / record.FILE
    file.write_text(file.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))
    assert record.load(tmp_path) is None
    file.write_text("{")
    assert record.load(tmp_path) is None
    record.forget(tmp_path)
    record.forget(tmp_path)
    assert record.load(tmp_path) is None


def test_services_that_lost_their_supervisor_are_stopped_and_those_of_others_are_not(tmp_path):
    def service(state):
        protects = "from pagantic_common.rpc.process.protection import protect_memory; protect_memory()"
        program = f"{protects}; import time; print(flush=True); time.sleep(60)"
        command = [sys.executable, *owner_options(str(state)), "-c", program, "-m", "services.tools"]
        process = subprocess.Popen(command, env={"PYTHONPATH": ":".join(sys.path)}, stdout=subprocess.PIPE)
        process.stdout.readline()
        return process

    ours, theirs = service(tmp_path), service(tmp_path / "other")
    try:
        assert stop_leftovers(tmp_path, os.getpid(), lambda: None) == []  # their supervisor lives
        assert stop_leftovers(tmp_path, 0, lambda: None) == ["tools"]
        assert is_gone(ours.pid)
        assert theirs.poll() is None
    finally:
        for one in (ours, theirs):
            one.kill()
            one.communicate()


def test_a_service_shows_its_state_folder_in_its_command_line(monkeypatch):
    programs = []
    monkeypatch.setattr(os, "execv", lambda _, argv: programs.append(argv))
    monkeypatch.setattr(child.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *_: 0))
    monkeypatch.setenv(OWNER_VARIABLE, "/state")
    monkeypatch.setattr(sys, "argv", ["child", "tools"])
    child.main()
    program, *arguments = command("services.tools")
    assert programs == [[program, *owner_options("/state"), *arguments]]
