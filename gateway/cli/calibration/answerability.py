"""`pagantic calibrate`: uses labelled questions to fit the parameters that turn a model's yes into a probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import options
from gateway.cli.calibration.labels import USEFUL_AREA, note_few, read_labels
from gateway.cli.completion import names_of
from gateway.cli.failures import EXIT_FAILED
from gateway.cli.output import check_response, note, reporting_errors, say, say_json, showing_progress
from gateway.cli.retrieval.ask import Chunks, RetrieverName, check_retriever, find_retriever
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.client import Client, ask_request
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.requests import ASKED_CHUNKS, AUTO
from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.text.calibration import (
    Calibration,
    Example,
    area_under_curve,
    brier_score,
    fit_calibration,
)
from pagantic_common.domain.text.json_text import dump_json

_FORM = '{"question": "...", "answerable": true}'


@dataclass(frozen=True, slots=True)
class _Label:
    """A question with a label that says whether the collection contains its answer."""

    question: str
    is_answerable: bool


def calibrate(
    collection: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTION", help="Collection that the questions ask.", autocompletion=names_of("collections")
        ),
    ],
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="JSON Lines: a question and whether it is answerable in each line.")
    ],
    *,
    retriever: RetrieverName = AUTO,
    chunks: Chunks = ASKED_CHUNKS,
    model: options.Model = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time for one question.", show_default=True)
    ] = options.TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Calibrate the probability of an answer on labels."""
    with reporting_errors():
        check_retriever(retriever)
        labelled = read_labels(labels, _FORM, _label_of)
        with Client(address, timeout_s=timeout) as client:
            if retriever == AUTO:
                retriever = find_retriever(client, collection)
            examples = _Asking(client, collection, retriever, chunks, model).ask_all(labelled)
    missing = len(labelled) - len(examples)
    if missing:
        note(f"nothing was retrieved for {count_of(missing, 'question')}, whose probability is 0: they do not count")
    if not examples:
        note("there is nothing to calibrate by: ask what the collection has")
        raise typer.Exit(EXIT_FAILED)
    _report(examples, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Asking:
    """Asks the model whether the chunks of each question contain the answer."""

    client: Client
    collection: str
    retriever: str
    max_chunks: int
    model: str

    def ask_all(self, labels: Sequence[_Label]) -> list[Example]:
        """Return the log-odds and the label of each question for which the model weighed chunks."""
        examples: list[Example] = []
        with showing_progress() as progress:
            for number, label in enumerate(labels, 1):
                progress.show(f"question {number} of {len(labels)}")
                weighed = self._ask(label.question)
                if weighed.HasField("log_odds"):
                    examples.append((weighed.log_odds, label.is_answerable))
        return examples

    def _ask(self, question: str) -> event_pb2.ContextWeighed:
        """Return the model's `ContextWeighed` event for a question.

        A minimum probability of 1 ends the request before decoding begins.
        """
        request = ask_request(
            self.collection,
            question,
            retriever=self.retriever,
            max_chunks=self.max_chunks,
            min_probability=1.0,
            model=self.model,
            max_tokens=1,
            max_retries=0,
        )
        weighed = event_pb2.ContextWeighed()
        for event in self.client.stream(request):
            if event.HasField("context_weighed"):
                weighed = event.context_weighed
            elif event.HasField("completed") and not weighed.HasField("probability"):
                check_response(event.completed.response)
                raise Unavailable("the model could not be asked")
        return weighed


def _label_of(value: dict[str, Any]) -> _Label | None:
    """Parse a JSON object as a label. Return None if the object is not a label."""
    question = value.get("question")
    if not isinstance(question, str) or not question.strip() or not isinstance(value.get("answerable"), bool):
        return None
    return _Label(question, value["answerable"])


def _report(examples: Sequence[Example], *, as_json: bool) -> None:
    calibration = fit_calibration(examples)
    area = area_under_curve(examples)
    figures = {
        "questions": len(examples),
        "answerable": sum(is_answerable for _, is_answerable in examples),
        "brier_before": brier_score(Calibration().judge(examples)),
        "brier_after": brier_score(calibration.judge(examples)),
        "area_under_curve": area,
        "slope": calibration.slope,
        "intercept": calibration.intercept,
    }
    _note_doubts(len(examples), calibration, area)
    if as_json:
        say_json(dump_json(figures))
        return
    say(f"{count_of(len(examples), 'question')}, {figures['answerable']} answerable")
    say(f"Brier score: {figures['brier_before']:.3f} before, {figures['brier_after']:.3f} after (on these questions)")
    _say_area(area)
    say(f"slope: {calibration.slope:.4f}")
    say(f"intercept: {calibration.intercept:.4f}")


def _note_doubts(count: int, found: Calibration, area: float | None) -> None:
    note_few(count)
    if area is not None and found.slope <= 0:
        note(
            "the slope is not above 0: the model is surer of a yes where the answer is missing; do not use the numbers"
        )


def _say_area(area: float | None) -> None:
    if area is None:
        note("the labels are of one kind, so nothing tells whether the model tells questions apart: label both kinds")
        return
    say(f"area under the curve: {area:.3f}")
    if area < USEFUL_AREA:
        note(f"below {USEFUL_AREA} the model hardly tells answerable questions from others; 0.5 is a guess")
