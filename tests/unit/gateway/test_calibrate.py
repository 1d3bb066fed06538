"""The calibration of a model's yes on labelled questions, and the options of `ask` that ask the model."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from pagantic.common.v1 import error_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving


class Weighing(ScriptedOrchestrator):
    """Answers a question such as "2.5" with these log-odds, and another one with none."""

    def __init__(self):
        super().__init__()
        self.error = None
        self.confidence = 0.5

    async def ExecuteStream(self, request, _context):
        self.requests.append(request)
        response = execution_pb2.SystemResponse(
            request_id="r1",
            content="The sources do not have the answer.",
            confidence=self.confidence,
            confidence_source=execution_pb2.CONFIDENCE_SOURCE_RETRIEVAL,
        )
        if self.error is not None:
            response.error.CopyFrom(self.error)
        else:
            yield event_pb2.ExecutionEvent(context_weighed=weighed_for(request.messages[-1].content))
        yield event_pb2.ExecutionEvent(completed=event_pb2.Completed(response=response))


def weighed_for(question):
    try:
        return event_pb2.ContextWeighed(probability=0.5, log_odds=float(question), min_probability=1)
    except ValueError:
        return event_pb2.ContextWeighed(probability=0, min_probability=1)


@pytest.fixture
def orchestrator():
    return Weighing()


@pytest.fixture
def invoke(orchestrator):
    with serving(orchestrator) as address:
        yield lambda *arguments: CliRunner().invoke(app, list(arguments), env={"PAGANTIC_ADDRESS": address})


@pytest.fixture
def calibrate(invoke, tmp_path):
    def run(*labels, options=()):
        lines = [json.dumps({"question": question, "answerable": label}) for question, label in labels]
        (tmp_path / "labels.jsonl").write_text("\n".join(lines), encoding="utf-8")
        return invoke("calibrate", "docs", str(tmp_path / "labels.jsonl"), "--retriever", "bm25", *options)

    return run


LABELS = (("4.0", True), ("2.0", True), ("3.0", False), ("1.0", False), ("-1.0", False))


def test_labels_give_the_two_numbers_and_how_good_they_are(calibrate):
    figures = json.loads(calibrate(*LABELS, options=["--json"]).stdout)
    assert (figures["questions"], figures["answerable"]) == (5, 2)
    assert figures["brier_after"] < figures["brier_before"]
    assert figures["area_under_curve"] == pytest.approx(5 / 6)
    assert 0 < figures["slope"] < 10
    shown = calibrate(*LABELS).stdout
    for part in ("5 questions, 2 answerable", "Brier score: ", f"slope: {figures['slope']:.4f}", "intercept: -"):
        assert part in shown


def test_each_question_is_asked_so_that_nothing_is_decoded(calibrate, orchestrator):
    calibrate(*LABELS, options=["--chunks", "3", "--model", "small"])
    assert [request.messages[-1].content for request in orchestrator.requests] == [question for question, _ in LABELS]
    for request in orchestrator.requests:
        assert (request.context.answerability.min_probability, request.hints.max_tokens) == (1, 1)
        assert (request.context.max_chunks, request.hints.model) == (3, "small")
        assert request.output.HasField("citations")


def test_questions_without_chunks_do_not_count(calibrate):
    result = calibrate(*LABELS, ("nothing", False))
    assert "nothing was retrieved for 1 question, whose probability is 0" in result.stderr
    assert "5 questions" in result.stdout
    alone = calibrate(("nothing", True))
    assert (alone.exit_code, alone.stdout) == (1, "")
    assert "nothing to calibrate by" in alone.stderr


def test_a_model_that_guesses_and_labels_of_one_kind_are_told(calibrate):
    assert "below 0.7 the model hardly tells" in calibrate(("1.0", True), ("1.0", False)).stderr
    of_one_kind = calibrate(*[(f"{number}.0", True) for number in range(30)]).stderr
    assert "label both kinds" in of_one_kind
    assert "do not use" not in of_one_kind


def test_few_labels_and_a_model_that_says_the_opposite_are_told_beside_the_json_too(calibrate):
    few = calibrate(*LABELS, options=["--json"])
    assert "the numbers of 5 questions are hardly reliable: label at least 30" in few.stderr
    assert "the slope is not above 0" not in few.stderr
    assert json.loads(few.stdout)["slope"] > 0
    opposite = calibrate(*[("1.0", False), ("-1.0", True)] * 15)
    assert "hardly reliable" not in opposite.stderr
    assert "the slope is not above 0: the model is surer of a yes where the answer is missing" in opposite.stderr


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("", "has 0 lines that are not empty: give 1 to 10000"),
        ("no", "line 1 of"),
        ("\n \nno", "line 3 of"),
        ('{"question": "a", "answerable": true}\n{"question": "a", "answerable": 1}', "line 2 of"),
        ('{"question": " ", "answerable": true}', "is no label: write {"),
        ('["a"]', "is no label"),
        ('{"question": "\\ud800", "answerable": true}', "half of a surrogate pair"),
    ],
)
def test_a_wrong_label_is_told_before_anything_is_asked(invoke, orchestrator, tmp_path, content, wrong):
    (tmp_path / "labels.jsonl").write_text(content, encoding="utf-8")
    result = invoke("calibrate", "docs", str(tmp_path / "labels.jsonl"))
    assert (result.exit_code, orchestrator.requests) == (2, [])
    assert wrong in result.stderr


def test_a_failure_ends_the_calibration(calibrate, orchestrator):
    orchestrator.error = error_pb2.SystemError(code=error_pb2.ERROR_CODE_CONFIG_INVALID, message="no collection 'docs'")
    result = calibrate(*LABELS)
    assert (result.exit_code, len(orchestrator.requests)) == (3, 1)
    assert "no collection 'docs'" in result.stderr
    orchestrator.error = error_pb2.SystemError()
    assert calibrate(*LABELS).exit_code != 0


def test_ask_takes_what_the_model_is_asked_for(invoke, orchestrator):
    plain = ("ask", "docs", "Why?", "--retriever", "hybrid")
    invoke(*plain)
    invoke(*plain, "--queries", "3", "--hyde", "--min-probability", "0.25")
    first, second = (request.context for request in orchestrator.requests)
    assert {field.name for field, _ in first.ListFields()} == {"retriever", "collection", "max_chunks", "required"}
    assert second.query_expansion == policy_pb2.QueryExpansion(queries=3, hypothetical_document=True)
    assert second.answerability == policy_pb2.Answerability(min_probability=0.25)
    assert invoke(*plain, "--queries", "6").exit_code == 2


def test_an_answer_that_the_limit_refused_is_told_with_its_probability(invoke, orchestrator):
    orchestrator.confidence = 0.2
    ask = ("ask", "docs", "Why?", "--retriever", "bm25")
    refused = invoke(*ask, "--min-probability", "0.25")
    assert refused.stdout == "The sources do not have the answer.\n"
    assert "with probability 0.2, which is below --min-probability 0.25" in refused.stderr
    for options in ((), ("--min-probability", "0.2")):
        assert "probability" not in invoke(*ask, *options).stderr


def test_ask_takes_the_two_numbers_of_a_calibration(invoke, orchestrator):
    plain = ("ask", "docs", "Why?", "--retriever", "bm25")
    numbers = ("--slope", "1.5", "--intercept", "-0.25")
    invoke(*plain, "--min-probability", "0", *numbers)
    (request,) = orchestrator.requests
    expected = policy_pb2.Answerability(min_probability=0, slope=1.5, intercept=-0.25)
    assert request.context.answerability == expected
    alone = invoke(*plain, *numbers)
    assert (alone.exit_code, len(orchestrator.requests)) == (2, 1)
    assert "give --min-probability, too" in alone.stderr
    assert invoke(*plain, "--min-probability", "0", "--slope", "1001").exit_code == 2
