"""Questions about one input, and their answers with calibrated or raw probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id, require_printable

MAX_QUESTIONS = 400
MIN_ANSWERS = 2
MAX_ANSWERS = 255
MAX_NAME_CHARS = 200
MAX_INSTRUCTIONS_BYTES = 16 * 1024
MAX_ANSWER_CHARS = 1000
MAX_DESCRIPTION_CHARS = 4000


class QuestionKind(StrEnum):
    """The kind of a question: a true or false statement, a choice of an option, or a score."""

    PREDICATE = "PREDICATE"
    CHOICE = "CHOICE"
    SCORE = "SCORE"


@dataclass(frozen=True, slots=True)
class Option:
    """A possible answer: a text or a truth value, and its meaning for the model."""

    value: str | bool
    description: str = ""

    @property
    def text(self) -> str:
        """The value in the form used by the model and by calibrations."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return self.value


PREDICATE_OPTIONS = (Option(True), Option(False))


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the input.

    The options of a score are its levels, from the lowest. The options of a predicate are true and false.
    """

    kind: QuestionKind
    instructions: str
    options: tuple[Option, ...] = PREDICATE_OPTIONS
    name: str = ""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The questions of a request, with the limits below which a decision is an abstention.

    `calibration` is the name of a calibration, or an empty string for no calibration.
    """

    questions: tuple[Question, ...]
    min_confidence: float = 0.0
    min_label_mass: float = 0.0
    calibration: str = ""

    def check(self, field: str) -> None:
        """Raise InvalidRequest with the name of the field if the questions are invalid."""
        if not 1 <= len(self.questions) <= MAX_QUESTIONS:
            raise InvalidRequest(f"{field}.questions has {len(self.questions)} entries: 1 to {MAX_QUESTIONS} are taken")
        for name, least in (("min_confidence", self.min_confidence), ("min_label_mass", self.min_label_mass)):
            if not 0 <= least <= 1:
                raise InvalidRequest(f"{field}.{name} is {least}: it must be between 0 and 1")
        if self.calibration:
            require_id(f"{field}.calibration", self.calibration)
        for position, question in enumerate(self.questions):
            _check_question(question, f"{field}.questions[{position}]")


class Abstention(StrEnum):
    """The reason that a decision is an abstention."""

    LOW_CONFIDENCE = "LOW_CONFIDENCE"
    LOW_LABEL_MASS = "LOW_LABEL_MASS"


@dataclass(frozen=True, slots=True)
class Decision:
    """The probabilities of a question's options.

    `label_mass` is the total probability that the model assigns to the labels of the options.
    """

    kind: QuestionKind
    probabilities: tuple[float, ...]
    label_mass: float
    name: str = ""
    abstention: Abstention | None = None

    @property
    def index(self) -> int:
        """The position of the most likely option; the first position in case of a tie."""
        return self.probabilities.index(self.confidence)

    @property
    def confidence(self) -> float:
        """The probability of the most likely option."""
        return max(self.probabilities)

    @property
    def score(self) -> float:
        """The expected value of a score. Its levels have the values 0, 1, 2 and so on."""
        return math.fsum(value * probability for value, probability in enumerate(self.probabilities))


def _check_question(question: Question, where: str) -> None:
    require_printable(f"{where}.name", question.name, MAX_NAME_CHARS)
    size = len(question.instructions.encode())
    if not question.instructions.strip() or size > MAX_INSTRUCTIONS_BYTES:
        raise InvalidRequest(
            f"{where}.instructions has {size} bytes: it must have 1 to {MAX_INSTRUCTIONS_BYTES}, and not be blank"
        )
    if question.kind is not QuestionKind.PREDICATE:
        _check_options(question.options, f"{where}.{_FIELDS[question.kind]}")


_FIELDS = {QuestionKind.CHOICE: "choice.options", QuestionKind.SCORE: "score.levels"}


def _check_options(options: Sequence[Option], where: str) -> None:
    if not MIN_ANSWERS <= len(options) <= MAX_ANSWERS:
        raise InvalidRequest(f"{where} has {len(options)} entries: it must have {MIN_ANSWERS} to {MAX_ANSWERS}")
    seen: set[tuple[bool, str]] = set()
    for position, option in enumerate(options):
        if not option.text.strip() or len(option.text) > MAX_ANSWER_CHARS:
            raise InvalidRequest(
                f"{where}[{position}] has {len(option.text)} characters: it must have 1 to {MAX_ANSWER_CHARS}, and not "
                "be blank"
            )
        if len(option.description) > MAX_DESCRIPTION_CHARS:
            raise InvalidRequest(
                f"{where}[{position}].description has {len(option.description)} characters: at most "
                f"{MAX_DESCRIPTION_CHARS} are taken"
            )
        key = isinstance(option.value, bool), option.text
        if key in seen:
            raise InvalidRequest(f"{where} has {option.text[:80]!r} more than once: they must differ")
        seen.add(key)
