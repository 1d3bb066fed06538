"""Votes through the orchestrator, with scripted replicas."""

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, Overloaded, Unavailable
from services.orchestrator.core.model.response import FinishReason
from tests.support.orchestrator_app import execute, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedConstraint, ScriptedInference, answer, scripted_services

A, B, BAD = '{"x": 1}', '{"x": 2}', "no JSON"
MAJORITY, STRICT, UNANIMITY, FIELDS = 1, 2, 3, 4


def vote(n=3, **fields):
    output = contract_pb2.OutputContract(schema_json="{}")
    voting = execution_pb2.Voting(n=n, **fields)
    return system_request(mode=execution_pb2.MODE_REDUNDANT, request_id="v", output=output, voting=voting)


def replicas(*texts):
    return ScriptedInference(*(text if isinstance(text, Exception) else answer(text) for text in texts))


async def ask(tmp_path, inference, request, constraint=None):
    services = scripted_services(inference=inference, constraint=constraint or ScriptedConstraint(BAD))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, request)
        return response, await timeline(stub, "v")


async def test_the_most_frequent_answer_wins_with_its_share_as_confidence(tmp_path):
    inference = replicas(B, A, '{ "x":1.0 }')
    response, events = await ask(tmp_path, inference, vote())
    assert response.structured_output_json == A
    assert response.confidence == pytest.approx(2 / 3)
    assert response.confidence_source == execution_pb2.CONFIDENCE_SOURCE_VOTING
    assert [(one.replica_index, one.votes) for one in response.candidates] == [(0, 1), (1, 2), (2, 2)]
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED
    assert response.token_usage.output_tokens == 9
    (sample,) = inference.commands
    assert (sample.temperature, sample.voting.n) == (0.7, 3)
    casts = [event.vote_cast for event in events if event.WhichOneof("event") == "vote_cast"]
    assert len(casts) == 3
    stages = [event.correlation.caused_by for event in events if event.WhichOneof("event") == "validation_stage"]
    assert stages == ["replica-0", "replica-1", "replica-2"]
    assert casts[1].value_hash == casts[2].value_hash != casts[0].value_hash
    names = [
        execution_pb2.LifecycleState.Name(event.transition.to_state) for event in events if event.HasField("transition")
    ]
    assert [name.removeprefix("LIFECYCLE_STATE_") for name in names] == [
        "INIT", "PREPARE", "EXECUTE", "VALIDATE", "COMPLETE",
    ]  # fmt: skip


async def test_a_replica_whose_output_is_not_valid_abstains(tmp_path):
    response, events = await ask(tmp_path, replicas(BAD, A, A), vote())
    assert response.structured_output_json == A
    assert response.confidence == pytest.approx(2 / 3)
    assert response.candidates[0].votes == 0
    assert [event.vote_cast.abstained for event in events if event.WhichOneof("event") == "vote_cast"] == [
        True, False, False,
    ]  # fmt: skip


async def test_what_ended_before_the_inference_failed_still_counts(tmp_path):
    lost = Unavailable("gone", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    response, _ = await ask(tmp_path, replicas(A, A, lost), vote())
    assert response.structured_output_json == A
    assert response.candidates[2].error.code == error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR


async def test_when_all_abstain_the_most_frequent_failure_is_the_response(tmp_path):
    response, _ = await ask(tmp_path, ScriptedInference(answer(BAD, reason=FinishReason.LENGTH)), vote(n=1))
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED
    assert not response.HasField("confidence")
    assert len(response.candidates) == 1


async def test_an_inference_that_fails_at_once_is_the_response(tmp_path):
    busy = Overloaded("busy", code=ErrorCode.INFERENCE_OVERLOADED)
    response, _ = await ask(tmp_path, replicas(busy), vote())
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_OVERLOADED


@pytest.mark.parametrize(
    ("strategy", "texts", "wins"),
    [
        (STRICT, (A, A, B), True),
        (STRICT, (A, B, BAD), False),
        (UNANIMITY, (A, A, B), False),
        (UNANIMITY, (A, A, A), True),
    ],
)
async def test_without_consensus_all_candidates_are_returned(tmp_path, strategy, texts, wins):
    response, _ = await ask(tmp_path, replicas(*texts), vote(strategy=strategy))
    assert len(response.candidates) == 3
    if wins:
        assert response.structured_output_json == A
    else:
        assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_NO_CONSENSUS
        assert not response.HasField("confidence")
        assert response.content == ""


async def test_fields_that_are_put_together_are_validated_again(tmp_path):
    texts = ('{"x": 1, "y": 1}', '{"x": 1, "y": 2}', '{"x": 2, "y": 2}')
    response, _ = await ask(tmp_path, replicas(*texts), vote(strategy=FIELDS))
    assert response.structured_output_json == '{"x":1,"y":2}'
    assert response.confidence == pytest.approx(2 / 3)
    constraint = ScriptedConstraint('{"x":1,"y":2}')
    (tmp_path / "second").mkdir()
    response, _ = await ask(tmp_path / "second", replicas(*texts), vote(strategy=FIELDS), constraint)
    assert response.HasField("error")
    assert not response.HasField("confidence")


async def test_a_decided_vote_stops_the_others_and_says_so(tmp_path):
    inference = replicas(A, A, A, B, B)
    response, _ = await ask(tmp_path, inference, vote(n=5, early_stop=True))
    assert response.structured_output_json == A
    assert (inference.ended, response.confidence) == (3, pytest.approx(3 / 5))
    assert response.validation.warnings == ["decided after 3 of 5 replicas: confidence is a lower bound"]
    assert response.token_usage.output_tokens == 9


async def test_a_deadline_is_no_abstention(tmp_path):
    late = DeadlineExceeded("late")
    request = vote()
    request.hints.timeout.FromMilliseconds(90)
    response, _ = await ask(tmp_path, replicas(A, late), request)
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
    assert [candidate.content for candidate in response.candidates] == [A]
    assert response.token_usage.output_tokens == 3
    assert not response.HasField("confidence")


@pytest.mark.parametrize("early_stop", [False, True])
async def test_abstentions_that_decide_a_vote_early_give_the_same_answer(tmp_path, early_stop):
    response, _ = await ask(tmp_path, replicas(BAD, A, A), vote(strategy=UNANIMITY, early_stop=early_stop))
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_NO_CONSENSUS


async def test_a_vote_that_every_replica_was_needed_for_has_its_whole_usage(tmp_path):
    response, _ = await ask(tmp_path, replicas(A, B, A), vote(strategy=STRICT, early_stop=True))
    assert response.token_usage.decode_seconds == 0.5
    assert not response.validation.warnings
