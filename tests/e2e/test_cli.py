"""The `pagantic` command against the running system, typed as a user types it."""

import json
import sys

import jsonschema_rs
import pytest

from tests.e2e.conftest import ROOT
from tests.support.killing import wait_until

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


@pytest.mark.whole
def test_a_collection_is_asked_verified_and_embedded_again(system):
    text = (EXAMPLES / "incident.txt").read_text(encoding="utf-8")
    system.run("pagantic", "ingest", "asked", EXAMPLES / "incident.txt")

    def embedded():
        (row,) = [
            line.split()
            for line in system.run("pagantic", "collections", "list").stdout.splitlines()
            if "asked" in line
        ]
        return row[2] == row[3]

    wait_until(embedded, "the chunks have embeddings")
    for retriever in ("auto", "bm25", "vector"):
        asked = ("ask", "asked", "Why did payments fail?", "--retriever", retriever, "--json", "--max-tokens", "700")
        answer = json.loads(system.run("pagantic", *asked).stdout)
        for citation in answer["citations"]:
            assert text[citation.get("start", 0) : citation["end"]] == citation["quote"]
            assert citation["guarantee"] == "GUARANTEE_ENFORCED"
    shown = system.run("pagantic", "ask", "asked", "Why did payments fail?").stdout
    assert "incident.txt, characters" in shown or "The sources do not have the answer." in shown
    assert "0 differences" in system.run("pagantic", "verify", "asked").stdout
    system.run("pagantic", "collections", "reembed", "asked", "none")
    refused = system.run("pagantic", "ask", "asked", "Why?", "--retriever", "vector", check=False)
    assert refused.returncode != 0
    assert "has no embeddings" in refused.stderr
    system.run("pagantic", "collections", "reembed", "asked", "all-MiniLM-L6-v2")


@pytest.mark.parametrize(
    ("command", "exit_code", "wrong"),
    [
        (("ask", "never", "Why?"), 3, "no collection is named 'never'"),
        (("ask", "never", "Why?", "--retriever", "magic"), 2, "use one of auto"),
        (("verify", "never"), 3, "no collection is named 'never'"),
        (("timeline", "never"), 3, "no execution has request_id 'never'"),
        (("run", "no-such-file.json"), 2, "no-such-file.json"),
        (("chat", ""), 2, "the text is empty"),
        (("chat", "hi", "--tool", "hammer"), 5, "no tool is named 'hammer'"),
        (("chat", "hi", "--address", "127.0.0.1:9"), 7, "pagantic up"),
        (("chat", "hi", "--context", "never"), 3, "never"),
    ],
)
def test_a_mistake_is_a_line_on_stderr_and_a_code(system, command, exit_code, wrong):
    done = system.run("pagantic", *command, check=False)
    assert done.returncode == exit_code, done.stderr
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.whole
def test_the_demo_answers_its_requests_and_leaves_a_running_system_alone(system):
    shown = system.run(sys.executable, "-m", "deploy.local", "demo", "--once").stdout
    assert "6 of 6 requests ended without error" in shown
    system.run("pagantic", "status")


def test_a_calculation_shows_the_tool_its_arguments_and_its_result(system):
    options = ("--tool", "calculator", "--tool-choice", "required", "--temperature", "0")
    shown = system.run("pagantic", "chat", "What is 17*23?", *options).stderr
    assert "-> 391" in shown
    assert "calculator({" in shown


def test_a_structured_answer_that_was_cut_leaves_stdout_empty_and_can_be_looked_up(system):
    schema, text = EXAMPLES / "incident_schema.json", f"@{EXAMPLES / 'incident.txt'}"
    options = ("--max-tokens", "12", "--request-id", "cut-1")
    done = system.run("pagantic", "structured", "--schema", schema, text, *options, check=False)
    assert (done.returncode, done.stdout) == (6, "")
    assert "INFERENCE_OUTPUT_TRUNCATED" in done.stderr
    assert "cut-1" in system.run("pagantic", "executions", "--state", "ERROR").stdout
    shown = system.run("pagantic", "show", "cut-1", check=False)
    assert (shown.returncode, shown.stdout) == (6, "")


def test_a_vote_and_a_plan_print_their_answers(system):
    schema, text = EXAMPLES / "severity_schema.json", f"@{EXAMPLES / 'incident.txt'}"
    voted = system.run("pagantic", "vote", "-n", "5", "--schema", schema, text, "--seed", "1")
    assert json.loads(voted.stdout)["severity"] in ("low", "medium", "high")
    assert "votes: " in voted.stderr
    assert system.run("pagantic", "plan", "Say hello.", "--max-tokens", "8").stdout.strip()


def test_a_folder_is_stored_listed_and_deleted(system, tmp_path):
    (tmp_path / "a.txt").write_text("A lighthouse guides ships.", encoding="utf-8")
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe")
    stored = system.run("pagantic", "ingest", "folder", tmp_path, check=False)
    assert (stored.returncode, "1 added" in stored.stdout) == (9, True)
    assert "b.bin: CONFIG_INVALID: the file has no text" in stored.stderr
    assert "folder" in system.run("pagantic", "collections", "list").stdout
    system.run("pagantic", "collections", "delete", "folder")
    assert "folder" not in system.run("pagantic", "collections", "list").stdout


def test_conversations_models_and_logs_can_be_looked_at(system):
    system.run("pagantic", "chat", "My name is Ana.", "--session", "cli-s", "--max-tokens", "8")
    assert "cli-s" in system.run("pagantic", "sessions", "list").stdout
    assert "user: My name is Ana." in system.run("pagantic", "sessions", "show", "cli-s").stdout
    system.run("pagantic", "sessions", "delete", "cli-s")
    assert system.run("pagantic", "sessions", "show", "cli-s", check=False).returncode == 3
    assert "4096" in system.run("pagantic", "models").stdout
    assert system.run("pagantic", "logs", "orchestrator").stdout
