"""The two tasks, with their schemas and rules: word problems of ASDiv, and the polarity of sentences of reviews."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

SEED = 1  # It draws the order of the samples.
_WHOLE_NUMBER = re.compile(r"(\d+)(?: \D*)?")
_SPACE_BEFORE_MARK = re.compile(r" (?=[.,;:?!)])|(?<=\() ")


@dataclass(frozen=True, slots=True)
class Sample:
    """An input with its label, and the condition on the answer, in CEL."""

    input: str
    expected: str | int
    rule: str


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of each sample.

    Attributes:
        instructions: The system prompt of all arms.
        chat_ending: What the system prompt of a free answer adds.
        schema: The form of the answer in all other arms.
        scorer: The scorer of a free answer, as in a suite.
        pointer: The scored part of an answer with a schema.
        chat_tokens: Most tokens of a free answer.
        read: Reads the samples from the file of the set.
    """

    instructions: str
    chat_ending: str
    schema: Mapping[str, Any]
    scorer: Mapping[str, Any]
    pointer: str
    chat_tokens: int
    read: Callable[[Path], list[Sample]]


def samples_of(task: Task, path: Path) -> list[Sample]:
    """Return the samples of a set in an order drawn by SEED."""
    samples = task.read(path)
    Random(SEED).shuffle(samples)  # noqa: S311 - no secret
    return samples


def _read_problems(path: Path) -> list[Sample]:
    """Return the word problems of ASDiv whose answer is a whole number."""
    problems = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [
        Sample(f"{problem['passage'].strip()} {problem['question'].strip()}", int(answer[1]), GIVES_ANSWER)
        for problem in problems
        if (answer := _WHOLE_NUMBER.fullmatch(problem["answer"].strip()))
    ]


def _read_sentences(path: Path) -> list[Sample]:
    """Return the labelled sentences of reviews, written with the spaces of ordinary text."""
    csv.field_size_limit(1 << 30)
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    return [_sentence(_SPACE_BEFORE_MARK.sub("", row["text"].strip()), row["label"]) for row in rows]


def _sentence(text: str, label: str) -> Sample:
    return Sample(text, POLARITIES[int(label)], f"{json.dumps(text, ensure_ascii=False)}.contains(value.quote)")


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# An equation: up to five numbers with operators between them, and the result.
_EQUATION = r"^\(*[0-9.]{1,8}\)*( [-+*/] \(*[0-9.]{1,8}\)*){1,4} = [0-9.]{1,10}$"
GIVES_ANSWER = 'value.calculation.endsWith("= " + string(int(value.answer)))'
POLARITIES = ("negative", "positive")
TASKS = {
    "asdiv": Task(
        instructions="Solve the problem: write the whole calculation with its result, and then the answer.",
        chat_ending="Explain it in one or two short sentences, and end with the line `Answer: NUMBER`.",
        schema=_object(calculation={"type": "string", "pattern": _EQUATION}, answer={"type": "integer"}),
        scorer={"type": "numeric"},
        pointer="/answer",
        chat_tokens=200,
        read=_read_problems,
    ),
    "polarity": Task(
        instructions=(
            "You read a sentence of a film review. Copy up to five words that show the opinion, exactly as they are, "
            "and then say whether the opinion is positive or negative."
        ),
        chat_ending="End with the line `Answer: positive` or `Answer: negative`.",
        schema=_object(
            quote={"type": "string", "minLength": 1, "maxLength": 60}, opinion={"enum": [*reversed(POLARITIES)]}
        ),
        scorer={"type": "label", "labels": list(POLARITIES)},
        pointer="/opinion",
        chat_tokens=100,
        read=_read_sentences,
    ),
}
