"""The supervisor's configuration and what is asked before it starts."""

from __future__ import annotations

import configparser
import socket

import pytest
from supervisor.options import ServerOptions

from deploy.local.areas import Area, read_areas, read_gateway
from deploy.local.probing import find_taken_ports, probe_health
from deploy.local.supervision import Supervision, SupervisionError


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def parsed(rendered):
    parser = configparser.RawConfigParser()
    parser.read_string(rendered)
    return parser


def test_supervisor_reads_a_program_for_each_service_and_opens_no_tcp_port(tmp_path, monkeypatch):
    folder = tmp_path / "an odd ; name"
    (folder / "logs").mkdir(parents=True)
    supervision = Supervision(folder)
    supervision._config.write_text(supervision._render(read_areas({})), encoding="utf-8")
    options = ServerOptions()
    monkeypatch.setattr(options, "usage", pytest.fail)
    options.realize(["-c", str(supervision._config)])
    programs = {program.name: program for group in options.process_group_configs for program in group.process_configs}
    assert set(programs) == {"orchestrator", "inference", "constraint", "context", "rerank", "tools"}
    assert programs["tools"].stdout_logfile == str(folder / "logs" / "tools.log")
    assert [config["section"] for config in options.server_configs] == ["unix_http_server"]


def test_the_http_gateway_calls_the_orchestrator_and_stops_before_it(tmp_path):
    settings = {"PAGANTIC_SERVE_HTTP": "on", "PAGANTIC_HTTP_PORT": "8090", "PAGANTIC_ORCHESTRATOR_PORT": "6001"}
    (gateway,) = read_gateway(settings)
    assert gateway.address == "127.0.0.1:8090"
    rendered = Supervision(tmp_path)._render((*read_areas(settings), gateway))
    assert "pagantic_common/run.py deploy.local.child http 127.0.0.1:6001\n" in rendered
    groups = {group["programs"]: int(group["priority"]) for name, group in parsed(rendered).items() if "group:" in name}
    assert groups == {"constraint,context,inference,rerank,tools": 1, "orchestrator": 2, "http": 3}


def test_the_http_gateways_address_is_one_of_urls():
    (gateway,) = read_gateway({"PAGANTIC_SERVE_HTTP": "1", "PAGANTIC_HTTP_HOST": "::1"})
    assert gateway.address == "[::1]:8080"


def test_without_the_setting_no_http_gateway_is_started():
    assert read_gateway({"PAGANTIC_HTTP_PORT": "8090"}) == read_gateway({"PAGANTIC_SERVE_HTTP": "off"}) == ()


def test_a_state_folder_that_supervisor_cannot_take_is_refused(tmp_path):
    with pytest.raises(SupervisionError, match="has a '%'"):
        Supervision(tmp_path / "100%").start(read_areas({}), {})


def test_the_control_socket_fits_however_deep_the_state_folder_is(tmp_path):
    assert len(str(Supervision(tmp_path / ("x" * 200))._socket)) < 100


def test_a_taken_port_is_named_with_its_service(taken_port):
    problems = find_taken_ports([Area("inference", "127.0.0.1", taken_port)])
    assert len(problems) == 1
    assert f"port {taken_port} of the inference service is in use" in problems[0]
    assert "PAGANTIC_INFERENCE_PORT" in problems[0]


def test_what_does_not_answer_is_unreachable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert probe_health(f"127.0.0.1:{unused.getsockname()[1]}") == "UNREACHABLE"


def test_nothing_runs_in_a_fresh_state_folder(tmp_path):
    supervision = Supervision(tmp_path)
    assert not supervision.is_running()
    assert supervision.daemon_pid() == 0
    assert supervision.processes() == {}


def test_a_log_tail_holds_only_the_last_lines_of_this_start(tmp_path):
    supervision = Supervision(tmp_path)
    supervision.logs.mkdir()
    log = tmp_path / "logs" / "tools.log"
    log.write_text("old\n" + "".join(f"{number}\n" for number in range(30)), encoding="utf-8")
    supervision._log_starts = {"tools": 4}
    assert supervision.log_tail("tools").splitlines() == [str(number) for number in range(10, 30)]
    log.write_text("x\n", encoding="utf-8")  # rotated
    assert supervision.log_tail("tools") == "x"
    assert supervision.log_tail("rerank") == ""
