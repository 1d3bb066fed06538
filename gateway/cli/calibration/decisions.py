"""`pagantic fit`: uses labelled decisions to fit the maps that calibrate a model's label probabilities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import options
from gateway.cli.calibration.labels import USEFUL_AREA, note_few, read_labels
from gateway.cli.output import UsageError, check_response, note, reporting_errors, say, say_json, showing_progress
from pagantic.orchestrator.v1 import decision_pb2, execution_pb2
from pagantic_common.client import Client, choice, decide_request, predicate, score
from pagantic_common.client.descriptions import count_of
from pagantic_common.domain.text.calibration import (
    Calibration,
    Example,
    LabelCalibration,
    area_under_curve,
    brier_score,
    expected_calibration_error,
    fit_calibration,
    one_against_rest,
    shares_of,
)
from pagantic_common.domain.text.isotonic import Curve, fit_curve
from pagantic_common.domain.text.json_text import dump_json


class Method(StrEnum):
    """A method of calibrating the probabilities of answers."""

    PLATT = "platt"
    ISOTONIC = "isotonic"


Fit = Callable[[Sequence[Example]], Calibration | Curve]
_FITS: Mapping[Method, Fit] = {Method.PLATT: fit_calibration, Method.ISOTONIC: fit_curve}
_FORM = '{"input": "...", "question": "...", "label": true}, or with "options" or "levels" and a label of these'
_LEAST = 1e-300  # A probability of 0 has no logarithm.
MAX_AT_ONCE = 400


@dataclass(frozen=True, slots=True)
class _Labelled:
    """A question about an input, the texts of its answers, and the index of the right answer."""

    text: str
    question: decision_pb2.Question
    answers: tuple[str, ...]
    right: int


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """A model's log-probabilities of the answers to a question, and the index of the right answer."""

    answers: tuple[str, ...]
    logprobs: tuple[float, ...]
    right: int


def fit(
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="JSON Lines: an input, a question and its label in each line.")
    ],
    output: Annotated[
        Path,
        typer.Argument(metavar="OUTPUT", help="File to write: NAME.json of the orchestrator's CALIBRATION_FOLDER."),
    ],
    *,
    method: Annotated[
        Method,
        typer.Option(
            metavar="METHOD", help="platt fits a line, isotonic a curve that only rises, for hundreds of labels."
        ),
    ] = Method.PLATT,
    model: options.Model = "",
    timeout: options.Timeout = options.TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Fit decisions to labels."""
    with reporting_errors():
        labelled = read_labels(labels, _FORM, _label_of)
        with Client(address, timeout_s=timeout) as client:
            served, judged = _ask_all(client, labelled, model)
        calibration = calibrated(served, judged, _FITS[method])
        _write(output, calibration)
    _report(judged, calibration, method, as_json=as_json)


def _label_of(value: dict[str, Any]) -> _Labelled | None:
    """Parse a JSON object as a label. Return None if the object is not a label."""
    text, question, label = str(value.get("input", "")), str(value.get("question", "")), value.get("label")
    if not (text.strip() and question.strip()):
        return None
    if isinstance(label, bool):
        return _Labelled(text, predicate(question), ("true", "false"), int(not label))
    for name, make in (("options", choice), ("levels", score)):
        answers = value.get(name)
        if isinstance(answers, list) and label in answers and all(isinstance(answer, str) for answer in answers):
            return _Labelled(text, make(question, answers), tuple(answers), answers.index(label))
    return None


def _ask_all(client: Client, labelled: Sequence[_Labelled], model: str) -> tuple[str, list[JudgedQuestion]]:
    """Return the serving model's name and its log-probabilities. Questions about the same input share a request."""
    served = ""
    judged: list[JudgedQuestion] = []
    with showing_progress() as progress:
        for part in _by_input(labelled):
            progress.show(f"question {len(judged) + 1} of {len(labelled)}")
            model_of_part, judged_part = _ask(client, part, model)
            served = model_of_part or served
            judged += judged_part
    return served, judged


def _ask(client: Client, part: Sequence[_Labelled], model: str) -> tuple[str, list[JudgedQuestion]]:
    """Return the name of the serving model and its log-probabilities for questions about the same input."""
    served = ""
    response = execution_pb2.SystemResponse()
    for event in client.stream(decide_request(part[0].text, [label.question for label in part], model=model)):
        served = event.inference_end.model or served
        if event.HasField("completed"):
            response = event.completed.response
    check_response(response)
    pairs = zip(part, response.decisions, strict=True)
    return served, [JudgedQuestion(label.answers, logprobs_of(decision), label.right) for label, decision in pairs]


def _by_input(labelled: Sequence[_Labelled]) -> Iterator[Sequence[_Labelled]]:
    by_text: Mapping[str, list[_Labelled]] = defaultdict(list)
    for label in labelled:
        by_text[label.text].append(label)
    for labels in by_text.values():
        yield from (labels[start : start + MAX_AT_ONCE] for start in range(0, len(labels), MAX_AT_ONCE))


def logprobs_of(decision: decision_pb2.Decision) -> tuple[float, ...]:
    """Return the logarithms of the probabilities of a decision's answers, in the order of the answers."""
    shares: Sequence[float] = (decision.predicate.probability, 1 - decision.predicate.probability)
    if decision.HasField("choice"):
        shares = decision.choice.probabilities
    elif decision.HasField("score"):
        shares = decision.score.probabilities
    return tuple(math.log(max(share, _LEAST)) for share in shares)


def calibrated(model: str, judged: Sequence[JudgedQuestion], fit: Fit = fit_calibration) -> LabelCalibration:
    """For each answer, fit a map from its log-odds against all other answers to whether it was right."""
    examples = _examples_of(judged)
    return LabelCalibration(model, {answer: fit(own) for answer, own in examples.items()})


def _examples_of(judged: Sequence[JudgedQuestion]) -> Mapping[str, list[Example]]:
    examples: dict[str, list[Example]] = defaultdict(list)
    for question in judged:
        for index, odds in enumerate(one_against_rest(question.logprobs)):
            examples[question.answers[index]].append((odds, index == question.right))
    return examples


def _write(path: Path, calibration: LabelCalibration) -> None:
    maps = {answer: asdict(fitted) for answer, fitted in sorted(calibration.maps.items())}
    try:
        path.write_text(dump_json({"model": calibration.model, "maps": maps}) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}") from None


def figures_of(judged: Sequence[JudgedQuestion], calibration: LabelCalibration | None) -> dict[str, float | None]:
    """Return quality measures of all answers' probabilities, as the model returned them or as calibrated."""
    pairs = []
    for question in judged:
        shares = shares_of(question.logprobs)
        if calibration is not None:
            shares = calibration.shares_of(question.answers, question.logprobs)
        pairs += [(share, index == question.right) for index, share in enumerate(shares)]
    return {
        "brier": brier_score(pairs),
        "calibration_error": expected_calibration_error(pairs),
        "area_under_curve": area_under_curve(pairs),
    }


def _report(judged: Sequence[JudgedQuestion], calibration: LabelCalibration, method: Method, *, as_json: bool) -> None:
    before, after = figures_of(judged, None), figures_of(judged, calibration)
    note_few(len(judged))
    if method is Method.ISOTONIC:
        note(
            "a curve follows the very questions it was fitted to: look at others before you trust the figures after it"
        )
    area = before["area_under_curve"]
    if area is not None and area < USEFUL_AREA:
        note(
            f"the area under the curve is below {USEFUL_AREA}: the model hardly tells the answers apart; 0.5 is a guess"
        )
    if as_json:
        say_json(dump_json({"model": calibration.model, "questions": len(judged), "before": before, "after": after}))
        return
    say(f"{count_of(len(judged), 'question')}, asked of {calibration.model}; before and after, on these questions:")
    say(f"Brier score: {before['brier']:.3f}, {after['brier']:.3f}")
    say(f"expected calibration error: {before['calibration_error']:.3f}, {after['calibration_error']:.3f}")
    if area is not None:
        say(f"area under the curve: {area:.3f}, {after['area_under_curve']:.3f}")
