"""Decisions through the orchestrator, with a scripted model."""

import math

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import decision_pb2, event_pb2, execution_pb2
from pagantic_common.client.requests import choice, decide_request, predicate, score
from pagantic_common.domain.errors import Conflict, ErrorCode, InvalidRequest, Unavailable, Unsupported
from pagantic_common.domain.text.calibration import Calibration, LabelCalibration
from tests.support.orchestrator_app import execute, orchestrator, timeline
from tests.support.scripted_services import ScriptedInference, scripted_services

QUESTIONS = [
    predicate("It is late.", name="late"),
    choice("Which?", ["spam", True, "true"], name="kind"),
    score("How good?", {"bad": "worse", "good": ""}),
]


def wanted(*questions, **fields):
    fields.setdefault("request_id", "d")
    return decide_request("The bus came at noon.", questions or QUESTIONS, **fields)


def world(label_logprobs=None, **calibrations):
    inference = ScriptedInference()
    inference.label_logprobs = label_logprobs
    services = scripted_services(inference)
    services.calibrations.update(calibrations)
    return services, inference


async def test_each_question_has_its_probabilities_and_the_timeline_one_inference(tmp_path):
    services, inference = world([(-1.0, -2.0), (-3.0, -1.0, -2.0), (-1.0, -1.0)])
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, wanted(system="Be strict."))
        events = await timeline(stub, "d")
    late, kind, good = response.decisions
    assert (late.name, late.predicate.probability) == ("late", pytest.approx(1 / (1 + math.exp(-1))))
    assert (kind.choice.index, sum(kind.choice.probabilities)) == (1, pytest.approx(1))
    assert kind.confidence == max(kind.choice.probabilities)
    assert (good.score.score, list(good.score.probabilities)) == (pytest.approx(0.5), [0.5, 0.5])
    assert late.label_mass == pytest.approx(math.exp(-1) + math.exp(-2))
    assert (response.token_usage.prompt_tokens, response.token_usage.cached_prompt_tokens) == (10, 4)
    assert response.finish_reason == generation_pb2.FINISH_REASON_STOP
    [command] = inference.commands
    assert command.messages[0].content.endswith("Be strict.")
    assert [question.labels for question in command.questions] == [("Yes", "No"), ("A", "B", "C"), ("0", "1")]
    [start] = [event.inference_start for event in events if event.HasField("inference_start")]
    [end] = [event.inference_end for event in events if event.HasField("inference_end")]
    assert start.purpose == event_pb2.INFERENCE_PURPOSE_DECISION
    assert (end.tokens_in, end.cached_tokens, end.tokens_out, end.model) == (10, 4, 0, "scripted")
    states = [event.transition.to_state for event in events if event.HasField("transition")]
    names = [execution_pb2.LifecycleState.Name(state).removeprefix("LIFECYCLE_STATE_") for state in states]
    assert names == ["INIT", "PREPARE", "EXECUTE", "COMPLETE"]


async def test_a_request_that_is_sent_again_has_the_stored_decisions(tmp_path):
    services, inference = world()
    async with orchestrator(tmp_path, services) as stub:
        first = await execute(stub, wanted())
        assert await execute(stub, wanted()) == first
        with pytest.raises(Conflict):
            await execute(stub, wanted("Another statement."))
    assert len(inference.commands) == 1


async def test_an_abstention_says_why(tmp_path):
    services, _ = world([(-1.0, -1.1), (-9.0, -9.5)])
    async with orchestrator(tmp_path, services) as stub:
        asked = wanted("unsure", "not said", min_confidence=0.9, min_label_mass=0.1)
        unsure, unsaid = (await execute(stub, asked)).decisions
    assert unsure.abstention == decision_pb2.ABSTENTION_LOW_CONFIDENCE
    assert unsaid.abstention == decision_pb2.ABSTENTION_LOW_LABEL_MASS
    assert unsaid.label_mass < 0.001


async def test_a_named_calibration_is_applied_if_it_fits(tmp_path):
    lines = {"true": Calibration(1.0, -1.0), "false": Calibration(1.0, 1.0)}
    services, _ = world(late=LabelCalibration("scripted", lines), other=LabelCalibration("another", lines))
    async with orchestrator(tmp_path, services) as stub:
        [raw] = (await execute(stub, wanted("It is late."))).decisions
        [scaled] = (await execute(stub, wanted("It is late.", request_id="d2", calibration="late"))).decisions
        unknown = await execute(stub, wanted(request_id="d3", calibration="never"))
        lacking = await execute(stub, wanted(request_id="d4", calibration="late"))
        foreign = await execute(stub, wanted("It is late.", request_id="d5", calibration="other"))
    odds = math.log(raw.predicate.probability / (1 - raw.predicate.probability))
    assert scaled.predicate.probability == pytest.approx(1 / (1 + math.exp(1 - odds)))
    for response, words in (
        (unknown, "none is named 'never'; configured: late, other"),
        (lacking, "does not know 'spam' of decisions.questions[1]"),
        (foreign, "belongs to model 'another', and 'scripted' answered"),
    ):
        assert response.error.code == error_pb2.ERROR_CODE_CONFIG_INVALID
        assert words in response.error.message
    assert foreign.token_usage.prompt_tokens == 10


async def test_a_model_that_tells_no_probabilities_fails_with_its_reason(tmp_path):
    services, _ = world(Unsupported("model 'remote' tells no probabilities of given text"))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, wanted())
        events = await timeline(stub, "d")
    assert "tells no probabilities" in response.error.message
    [end] = [event for event in events if event.HasField("inference_end")]
    assert end.HasField("error")


async def test_questions_that_cannot_be_asked_are_refused_before_anything_runs(tmp_path):
    services, inference = world()
    async with orchestrator(tmp_path, services) as stub:
        for questions, words in (
            ([decision_pb2.Question(instructions="x")], r"questions\[0\] has no kind"),
            ([choice("x", ["one"])], "choice.options has 1 entries"),
            ([decision_pb2.Question(instructions="x", choice={"options": [{}]})], "without a value"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                await execute(stub, wanted(*questions))
    assert inference.commands == []


async def test_an_outage_is_the_responses_error(tmp_path):
    down = Unavailable("inference cannot be reached", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)
    services, _ = world(down)
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, wanted())
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_MODEL_UNAVAILABLE
    assert not response.decisions
