"""Changes that people write for replays."""

import pytest

from gateway.replaying.changes import Changes, read_changes, request_of_replay
from gateway.written.errors import WrittenError
from pagantic.orchestrator.v1 import execution_pb2
from tests.support.orchestrator_app import system_request

RECORDED = system_request(
    "hi",
    request_id="first",
    session_id="talk",
    background=True,
    keep_request=True,
    prompt={"template": {"name": "host"}},
    hints={"temperature": 0.5, "seed": 7},
)


def replayed(written):
    asked = execution_pb2.Replay(from_step="infer-2")
    return request_of_replay(RECORDED, read_changes(written), "again", asked)


def test_a_replay_is_the_recorded_request_under_another_id_and_no_turn():
    request = request_of_replay(RECORDED, Changes(), "again", execution_pb2.Replay())
    assert (request.request_id, request.session_id, request.background, request.keep_request) == (
        "again", "", False, True,
    )  # fmt: skip
    assert request.replay.request_id == "first"
    assert dict(request.metadata) == {"replay.of": "first"}
    assert (request.messages, request.prompt, request.hints) == (RECORDED.messages, RECORDED.prompt, RECORDED.hints)


def test_changes_are_merged_into_the_recorded_request():
    request = replayed({"system": "Be brief.", "hints": {"model": "other"}})
    assert request.prompt.WhichOneof("source") == "text"
    assert (request.hints.model, request.hints.temperature, request.hints.seed) == ("other", 0.5, 7)
    assert request.replay.from_step == "infer-2"
    assert replayed({"prompt": {"template": {"variables": {"a": "b"}}}}).prompt.template.name == "host"


def test_a_change_takes_the_place_of_what_says_the_same_in_another_way():
    output, variant = {"grammar_name": "g"}, {"experiment": "e", "variant": "v"}
    before = system_request("hi", request_id="first", output=output, variant=variant)
    changes = read_changes({"output": {"grammar": 'root ::= "a"'}, "without_experiments": True})
    request = request_of_replay(before, changes, "again", execution_pb2.Replay())
    assert (request.output.grammar_name, request.output.grammar) == ("", 'root ::= "a"')
    assert (request.HasField("variant"), request.without_experiments) == (False, True)


def test_results_of_tools_are_texts_or_failures():
    request = replayed({"tool_results": {"c1": "noon", "c2": {"result": "gone", "is_error": True}}})
    assert [(one.tool_call_id, one.result, one.is_error) for one in request.replay.tool_results] == [
        ("c1", "noon", False),
        ("c2", "gone", True),
    ]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ([], "a mapping"),
        ({"mode": "plan"}, "does not change mode"),
        ({"session_id": "s"}, "does not change session_id"),
        ({"sessionId": "s"}, "lower case with underscores"),
        ({"tool_results": ["c1"]}, "a mapping of ids"),
        ({"tool_results": {"c1": 1}}, "tool_results.c1"),
        ({"tool_results": {"c1": {"text": "noon"}}}, "tool_results.c1"),
        ({"promt": "x"}, "no part of a SystemRequest.*promt"),
        ({"hints": {"temperature": "hot"}}, "no part of a SystemRequest"),
    ],
)
def test_wrong_changes_are_refused(written, reason):
    with pytest.raises(WrittenError, match=reason):
        replayed(written)
