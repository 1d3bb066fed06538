"""The calibration of decisions on labelled inputs."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from pagantic.orchestrator.v1 import decision_pb2, event_pb2, execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.calibration import Calibration
from pagantic_common.domain.text.isotonic import Curve
from services.orchestrator.adapters.operator_files import read_calibrations
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving


class Deciding(ScriptedOrchestrator):
    """Finds an input such as "2.5" true with these log-odds; a choice is as likely as its place."""

    async def ExecuteStream(self, request, _context):
        self.requests.append(request)
        response = execution_pb2.SystemResponse(request_id="r1")
        for question in request.decisions.questions:
            decision = response.decisions.add()
            if question.HasField("predicate"):
                decision.predicate.probability = 1 / (1 + math.exp(-float(request.messages[0].content)))
            else:
                decision.choice.CopyFrom(decision_pb2.ChoiceAnswer(probabilities=[0.5, 0.3, 0.2]))
        yield event_pb2.ExecutionEvent(inference_end=event_pb2.InferenceEnd(model="small"))
        yield event_pb2.ExecutionEvent(completed=event_pb2.Completed(response=response))


@pytest.fixture
def orchestrator():
    return Deciding()


@pytest.fixture
def calibrate(orchestrator, tmp_path):
    folder = tmp_path / "calibrations"
    folder.mkdir()

    def run(*lines, options=()):
        labels = tmp_path / "labels.jsonl"
        labels.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        arguments = ["fit", str(labels), str(folder / "late.json"), *options]
        return CliRunner().invoke(app, arguments, env={"PAGANTIC_ADDRESS": address})

    with serving(orchestrator) as address:
        run.folder = folder
        yield run


def label(text, right, **fields):
    return {"input": text, "question": "It is late.", "label": right, **fields}


LABELS = [label(str(odds), odds > 1) for odds in (-2.0, -1.0, 0.0, 0.5, 1.5, 2.0, 3.0, 4.0)] * 4


def test_the_written_file_is_what_the_orchestrator_reads(calibrate):
    result = calibrate(*LABELS)
    assert result.exit_code == 0, result.output
    found = read_calibrations(calibrate.folder)["late"]
    assert found.model == "small"
    true, false = found.maps["true"], found.maps["false"]
    assert true.slope == pytest.approx(false.slope)
    assert true.intercept == pytest.approx(-false.intercept)
    assert true.slope > 1
    assert true.intercept < 0
    for words in ("32 questions, asked of small", "Brier score: 0.097, 0.027", "area under the curve: 0.945, 1.000"):
        assert words in result.stdout


def test_a_curve_is_fitted_on_demand_and_read_as_one(calibrate):
    result = calibrate(*LABELS, options=["--method", "isotonic"])
    assert result.exit_code == 0, result.output
    true = read_calibrations(calibrate.folder)["late"].maps["true"]
    assert isinstance(true, Curve)
    assert (true.probability_of(-2.0), true.probability_of(4.0)) == pytest.approx((1 / 34, 33 / 34))
    assert "look at others" in result.stderr


def test_a_curve_that_falls_is_refused_with_the_file(tmp_path):
    (tmp_path / "down.json").write_text('{"model":"m","maps":{"a":{"log_odds":[0,1],"probabilities":[0.5,0.2]}}}')
    with pytest.raises(InvalidRequest, match=r"down.json' is not valid.*must rise"):
        read_calibrations(tmp_path)


def test_questions_on_the_same_input_are_asked_together(calibrate, orchestrator):
    chosen = label("1.0", "b", question="Which?", options=["a", "b", "c"])
    result = calibrate(label("1.0", True), chosen, label("2.0", True), options=["--json", "--model", "m"])
    assert [len(request.decisions.questions) for request in orchestrator.requests] == [2, 1]
    assert {request.hints.model for request in orchestrator.requests} == {"m"}
    figures = json.loads(result.stdout)
    assert (figures["questions"], figures["model"]) == (3, "small")
    assert set(figures["before"]) == set(figures["after"]) == {"brier", "calibration_error", "area_under_curve"}
    assert set(read_calibrations(calibrate.folder)["late"].maps) == {"true", "false", "a", "b", "c"}
    assert "hardly reliable" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        {"input": "1", "label": True},
        label("1.0", "maybe"),
        label("1.0", "d", options=["a", "b"]),
        label("1.0", "a", options="a"),
        label(" ", True),
        ["input"],
    ],
)
def test_a_line_that_is_no_label_is_named_with_the_form(calibrate, line):
    result = calibrate(label("1.0", True), line)
    assert result.exit_code == 2
    assert "line 2 of" in result.stderr
    assert '"input"' in result.stderr


def test_a_folder_with_an_unusable_file_is_refused_with_its_name(tmp_path):
    assert read_calibrations(None) == {}
    (tmp_path / "ok.json").write_text('{"model":"m","maps":{"a":{"slope":2,"intercept":1}}}')
    (tmp_path / ".hidden.json").write_text("x")
    (tmp_path / "note.txt").write_text("x")
    assert read_calibrations(tmp_path)["ok"].maps == {"a": Calibration(2.0, 1.0)}
    for name, text in (("bad.json", "{"), ("other.json", '{"maps":{}}'), ("a b.json", "{}")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(InvalidRequest, match=f"the calibration .*/{name}'"):
            read_calibrations(tmp_path)
        path.unlink()
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_calibrations(tmp_path / "missing")
