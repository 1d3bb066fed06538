"""The example clients: the same program in five languages, against the real system with the real model."""

import json
import re
import sys
from contextlib import contextmanager

import jsonschema_rs
import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.text.terminal import plain_text
from tests.support import needs
from tests.support.client_programs import BUILD_S, LANGUAGES, WHOLE, skip_unless_sampled
from tests.support.live_requests import STORY
from tests.support.tls_system import TlsSystem

# The first test of a language may build its client.
pytestmark = pytest.mark.timeout(BUILD_S + 120)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
RATE = 6
COMMANDS = ["chat", "extract", "vote", "resume", "cancel", "error"]
REQUEST_ID = re.compile(r"^request: (\S+)$", re.MULTILINE)


@contextmanager
def changed(system, **environment):
    """Run what follows with these variables."""
    was = system.environment
    system.environment = was | environment
    try:
        yield
    finally:
        system.environment = was


@pytest.fixture(autouse=True)
def sampled(request):
    skip_unless_sampled(request.node)


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda language: language.name)
def program(request):
    return request.param.command()


@pytest.fixture
def run(system, program):
    """Run a command of the client; returns the completed process, which must have ended with this exit code."""

    def run_command(*command, exit_code=0, **environment):
        with changed(system, **environment):
            done = system.run(*program, *command, check=False)
        assert done.returncode == exit_code, f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run_command


def stored(channel, done):
    """Return the execution of a command, as the journal has it."""
    request = pb.GetExecutionRequest(request_id=REQUEST_ID.search(done.stderr)[1])
    return rpc.OrchestratorServiceStub(channel).GetExecution(request, timeout=10).execution


def test_chat_streams_what_the_system_answered(run, channel):
    done = run("chat", "In one sentence: what is a lighthouse for?")
    execution = stored(channel, done)
    assert execution.mode == execution_pb2.MODE_CHAT
    assert done.stdout == plain_text(execution.response.content) + "\n"
    assert re.search(r"^finished: (STOP|LENGTH), \d+ tokens$", done.stderr, re.MULTILINE)


def test_extract_prints_json_under_its_schema(run):
    done = run("extract", "My name is Ana, I am 34 and I live in Lisbon.")
    jsonschema_rs.validate(PERSON, json.loads(done.stdout))
    assert "guarantee: ENFORCED" in done.stderr.splitlines()


def test_vote_prints_the_label_and_the_confidence_of_the_vote(run, channel):
    done = run("vote", "The payment service is down for all customers.")
    response = stored(channel, done).response
    label = json.loads(response.structured_output_json)["severity"]
    assert len(response.candidates) == 5
    assert done.stdout == f"label: {label}\nconfidence: {response.confidence:.2f}\n"


def test_resume_shows_each_text_once_through_a_dropped_connection(run, channel):
    done = run("resume", STORY)
    execution = stored(channel, done)
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_COMPLETE
    assert done.stdout == plain_text(execution.response.content) + "\n"
    dropped = re.search(r"^dropped: after event (\d+)\nfollows: event (\d+)$", done.stderr, re.MULTILINE)
    assert dropped[1] == dropped[2]


def test_cancel_stops_the_execution_early(run, channel):
    for _ in range(3):  # a story may be so short that it ends before the cancel arrives
        done = run("cancel", STORY)
        if (ended_as := stored(channel, done).state.current) != execution_pb2.LIFECYCLE_STATE_COMPLETE:
            break
    assert ended_as == execution_pb2.LIFECYCLE_STATE_CANCELLED
    pattern = r"state: CANCELLED\nerror: CANCELLED_SIGNAL\noutput tokens: (\d+) of 1000\n"
    assert 0 < int(re.fullmatch(pattern, done.stdout)[1]) < 500


def test_error_decodes_a_status_and_the_error_of_a_response(run):
    lines = [line for line in run("error", exit_code=3).stderr.splitlines() if not line.startswith("request: ")]
    assert lines == [
        "error: CONFIG_INVALID",
        "from: status INVALID_ARGUMENT",
        "category: CONFIGURATION_FAILURE",
        "message: hints.temperature is 9: it must be between 0 and 2",
        "retryable: no",
        "error: CONFIG_SCHEMA_REQUIRED",
        "from: response",
        "category: CONFIGURATION_FAILURE",
        "message: mode STRUCTURED needs output.schema_json: send a JSON Schema",
        "retryable: no",
    ]


def test_wrong_usage_shows_the_same_help_in_each_language(run):
    bare, wrong = run(exit_code=2), run("error", "text", exit_code=2)
    assert bare.stderr == wrong.stderr
    assert bare.stdout == ""
    assert re.findall(r"^  ([a-z]+) ", bare.stderr, re.MULTILINE) == COMMANDS


def test_a_key_never_leaves_this_machine_in_plain_text(run):
    refused = run("chat", "hi", exit_code=2, PAGANTIC_ADDRESS="192.0.2.1:50051", PAGANTIC_API_KEY="pag_secret")
    assert "in plain text" in refused.stderr
    assert "secret" not in refused.stderr


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A system with certificates, whose callers need a key and may use it a few times an hour; yields it with keys."""
    if not WHOLE:
        needs.skip_without(needs.TIME_FOR_CLIENTS)
    running = TlsSystem(tmp_path_factory.mktemp("guarded"))
    admin = running.run("pagantic", "keys", "new").stdout.strip()
    file = running.state / "admin-key"
    file.write_text(admin)
    running.environment |= {
        "PAGANTIC_ORCHESTRATOR_AUTH": "keys",
        "PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE": str(file),
        "PAGANTIC_ORCHESTRATOR_CALL_RATE_OF_KEY": f"{RATE}/hour",
    }
    running.run(sys.executable, "-m", "deploy.local", "up")
    try:
        with changed(running, PAGANTIC_API_KEY=admin):
            made = [running.run("pagantic", "keys", "create", one.name, "--json").stdout for one in LANGUAGES]
        running.environment["PAGANTIC_ADDRESS"] = f"https://{running.address('orchestrator')}"
        yield running, [json.loads(one)["text"] for one in made]
    finally:
        running.run(sys.executable, "-m", "deploy.local", "down")


def test_a_key_and_tls_let_a_client_in_until_its_rate_is_used_up(guarded, program):
    running, keys = guarded
    with changed(running, PAGANTIC_API_KEY=keys.pop()):
        assert running.run(*program, "chat", "Say hello.").stdout.strip()
        refused = [running.run(*program, "extract", "x", check=False) for _ in range(RATE)][-1]
    assert refused.returncode == 7
    assert "error: QUOTA_RATE\nfrom: status RESOURCE_EXHAUSTED\n" in refused.stderr
    assert re.fullmatch(r"retry after: \d+\.\d s", refused.stderr.splitlines()[-1])


def test_a_server_of_another_authority_is_not_trusted(guarded, program):
    running, _ = guarded
    with changed(running, PAGANTIC_TLS_CA_FILE="", PAGANTIC_TIMEOUT_S="5"):
        refused = running.run(*program, "chat", "hi", check=False)
    assert refused.returncode == 7
    assert "from: status UNAVAILABLE" in refused.stderr
