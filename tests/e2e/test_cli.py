"""The `pagantic` command against the running system, typed as a user types it."""

import json
import sys

import jsonschema_rs
import pytest

from tests.e2e.conftest import ROOT

EXAMPLES = ROOT / "deploy" / "examples"


def test_status_and_doctor_find_everything_well(system):
    status = system.run("pagantic", "status").stdout
    for area in system.ports:
        assert area in status
    assert "SERVING" in status.upper()
    doctor = system.run("pagantic", "doctor")
    assert "engine threads: " in doctor.stdout


def test_chat_prints_an_answer(system):
    assert system.run("pagantic", "chat", "Say hello.", "--max-tokens", "16").stdout.strip()


def test_structured_prints_json_that_satisfies_the_schema(system):
    schema = EXAMPLES / "incident_schema.json"
    text = f"@{EXAMPLES / 'incident.txt'}"
    options = ("--max-tokens", "200", "--temperature", "0", "--seed", "1")
    shown = system.run("pagantic", "structured", "--schema", schema, text, *options).stdout
    jsonschema_rs.validate(json.loads(schema.read_text(encoding="utf-8")), json.loads(shown))


def test_run_takes_a_request_from_a_file_and_timeline_shows_it(system, tmp_path):
    request = json.loads((EXAMPLES / "chat_request.json").read_text(encoding="utf-8")) | {"request_id": "cli-1"}
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    response = json.loads(system.run("pagantic", "run", path).stdout)
    assert response["request_id" if "request_id" in response else "requestId"] == "cli-1"
    shown = system.run("pagantic", "timeline", "cli-1").stdout
    for word in ("INIT", "PREPARE", "EXECUTE", "COMPLETE", "inference"):
        assert word in shown


def test_ingest_and_tools_talk_to_their_services(system):
    assert "harbour" in system.run("pagantic", "ingest", "harbour", EXAMPLES / "incident.txt").stdout
    shown = system.run("pagantic", "tools").stdout
    assert all(tool in shown for tool in ("calculator", "clock", "json_query"))


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (("timeline", "never"), "no execution has request_id 'never'"),
        (("run", "no-such-file.json"), "no-such-file.json"),
        (("chat", "hi", "--tool", "hammer"), "no tool is named 'hammer'"),
        (("chat", "hi", "--address", "127.0.0.1:9"), "pagantic up"),
    ],
)
def test_a_mistake_is_a_line_on_stderr_and_a_code(system, command, wrong):
    done = system.run("pagantic", *command, check=False)
    assert done.returncode in (1, 2)
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_answers_its_requests_and_leaves_a_running_system_alone(system):
    shown = system.run(sys.executable, "-m", "deploy.local", "demo", "--once").stdout
    assert "5 of 5 requests ended without error" in shown
    system.run("pagantic", "status")
