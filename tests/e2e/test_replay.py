"""Recorded executions of every mode, replayed on the running system; `make test-replays` runs a hundred."""

import json
import os
import sys

import pytest
from google.protobuf import json_format

from gateway.replaying.changes import Changes, request_of_replay
from gateway.replaying.comparing import Recorded, Verdict, compare
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client

COUNT = int(os.environ.get("PAGANTIC_TEST_REPLAYS", "5"))
ATTEMPTS = 3
SCHEMA = json.dumps(
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
)
DRAWN = {"max_tokens": 16, "temperature": 0.9}
CALCULATE = {"tool": "calculator", "arguments": {"expression": "6 * 7"}}


def requests_of(number):
    """Return the fields of a request of each kind; most of them draw at random, with no seed of their own."""
    return [
        {"mode": "MODE_CHAT", "hints": DRAWN},
        {
            "mode": "MODE_CHAT",
            "tools": ["calculator"],
            "hints": {**DRAWN, "max_tokens": 48, "tool_choice": {"mode": "TOOL_CHOICE_MODE_REQUIRED"}},
        },
        {
            "mode": "MODE_STRUCTURED",
            "output": {"schema_json": SCHEMA},
            "rules": [{"name": "small", "expression": f"output.n < {number % 7}"}],
            "retry": {"max_retries": 1},
            "hints": DRAWN,
        },
        {"mode": "MODE_REDUNDANT", "output": {"schema_json": SCHEMA}, "voting": {"n": 3}, "hints": DRAWN},
        {
            "mode": "MODE_PLAN",
            "plan": {
                "steps": [
                    {"name": "six", "kind": "tool", "parameters_json": json.dumps(CALCULATE)},
                    {"name": "say", "kind": "infer", "depends_on": ["six"]},
                ]
            },
            "hints": DRAWN,
        },
    ]


def request_of(number):
    kinds = requests_of(number)
    fields = kinds[number % len(kinds)]
    message = {"role": "ROLE_USER", "content": f"What is {number} times {number + 3}?"}
    request = json_format.ParseDict({**fields, "messages": [message]}, execution_pb2.SystemRequest())
    request.request_id = f"recorded-{number}"
    request.keep_request = True
    return request


def recorded(client, request_id):
    response = client.get_execution(request_id).response
    return Recorded(response, client.list_steps(request_id), client.timeline(request_id))


def replay(client, number, name):
    first = client.get_execution(f"recorded-{number}").request
    request = request_of_replay(first, Changes(), f"{name}-{number}", execution_pb2.Replay())
    client.execute(request)
    return recorded(client, request.request_id)


def check_repeated(client, number, before):
    """Replay until two replays in a row are the same: the cache has all of the prompts, so their batches are, too.

    The lengths of drafts follow the times of steps, so batches may differ while the machine is busy.
    """
    for attempt in range(ATTEMPTS):
        again = replay(client, number, f"more-{attempt}")
        compared = compare(before, again)
        if compared.is_same:
            return
        assert "drafts" in compared.first_difference.explanation, compared.as_json()
        before = again
    pytest.fail(f"{ATTEMPTS} replays in a row differ: {compared.as_json()}")


@pytest.mark.timeout(900)
def test_replays_are_in_the_same_states_and_say_the_same_or_what_differs(system, capsys):
    explained = 0
    with Client(system.address("orchestrator")) as client:
        for number in range(COUNT):
            client.execute(request_of(number))
            before = recorded(client, f"recorded-{number}")
            again = replay(client, number, "again")
            compared = compare(before, again)
            if not compared.is_same:
                explained += 1
                assert "other batch shapes" in compared.first_difference.explanation, compared.as_json()
            else:
                assert compared.has_same_states
            check_repeated(client, number, again)
            assert {step.verdict for step in compared.steps} & {Verdict.SAME, Verdict.TAKEN}
    told = f"{COUNT} replays: {COUNT - explained} gave the same text, {explained} had other batch shapes"
    with capsys.disabled():
        sys.stdout.write(f"\n{told}\n")


def test_the_command_replays_with_changes_and_shows_what_differs(system, tmp_path):
    request = tmp_path / "request.json"
    fields = {"mode": "MODE_CHAT", "messages": [{"role": "ROLE_USER", "content": "Name a color."}]}
    hints = {"max_tokens": 12, "temperature": 0}
    request.write_text(json.dumps({**fields, "hints": hints, "request_id": "color", "keep_request": True}))
    system.run("pagantic", "run", request)
    same = system.run("pagantic", "replay", "color", "--check")
    assert "infer-1          same" in same.stdout
    changes = tmp_path / "changes.yaml"
    changes.write_text("system: You are a pirate who never answers.\nhints: {max_tokens: 5}\n")
    other = system.run("pagantic", "replay", "color", "--change", changes, "--check", check=False)
    assert other.returncode == 1
    assert "another prompt" in other.stdout
    wrong = system.run("pagantic", "replay", "color", "--fork", "infer-9", check=False)
    assert (wrong.returncode, "its steps: prepare, infer-1" in wrong.stderr) == (3, True)
