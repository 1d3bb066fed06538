"""Converts questions and decisions to and from proto."""

from __future__ import annotations

from pagantic.orchestrator.v1 import decision_pb2
from pagantic_common.codec.fields import EnumCodec
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.model.decision import (
    Abstention,
    Decision,
    Decisions,
    Option,
    Question,
    QuestionKind,
)

_ABSTENTIONS = EnumCodec(decision_pb2.Abstention, Abstention, "ABSTENTION_", unknown=None)


def decisions_from_proto(decisions: decision_pb2.Decisions) -> Decisions:
    """Decode the questions of a request.

    Raises InvalidRequest if a question has no kind, or if an option has no value.
    """
    return Decisions(
        questions=tuple(
            _question_from_proto(question, f"decisions.questions[{position}]")
            for position, question in enumerate(decisions.questions)
        ),
        min_confidence=decisions.min_confidence,
        min_label_mass=decisions.min_label_mass,
        calibration=decisions.calibration,
    )


def _question_from_proto(question: decision_pb2.Question, where: str) -> Question:
    match question.WhichOneof("kind"):
        case "predicate":
            return Question(QuestionKind.PREDICATE, question.instructions, name=question.name)
        case "choice":
            options = tuple(_option_from_proto(option, where) for option in question.choice.options)
            return Question(QuestionKind.CHOICE, question.instructions, options, question.name)
        case "score":
            levels = tuple(Option(level.label, level.description) for level in question.score.levels)
            return Question(QuestionKind.SCORE, question.instructions, levels, question.name)
        case _:
            raise InvalidRequest(f"{where} has no kind: set predicate, choice or score")


def _option_from_proto(option: decision_pb2.Option, where: str) -> Option:
    field = option.WhichOneof("value")
    if field is None:
        raise InvalidRequest(f"{where}.choice has an option without a value: set text or flag")
    return Option(getattr(option, field), option.description)


def decision_to_proto(decision: Decision) -> decision_pb2.Decision:
    """Encode a decision."""
    encoded = decision_pb2.Decision(
        name=decision.name,
        confidence=decision.confidence,
        label_mass=decision.label_mass,
        abstention=_ABSTENTIONS.to_proto(decision.abstention),
    )
    match decision.kind:
        case QuestionKind.PREDICATE:
            encoded.predicate.probability = decision.probabilities[0]
        case QuestionKind.CHOICE:
            encoded.choice.index = decision.index
            encoded.choice.probabilities.extend(decision.probabilities)
        case QuestionKind.SCORE:
            encoded.score.score = decision.score
            encoded.score.probabilities.extend(decision.probabilities)
    return encoded


def decision_from_proto(encoded: decision_pb2.Decision) -> Decision:
    """Decode a decision."""
    kind = QuestionKind((encoded.WhichOneof("answer") or "predicate").upper())
    probabilities: tuple[float, ...] = (encoded.predicate.probability, 1 - encoded.predicate.probability)
    if kind is QuestionKind.CHOICE:
        probabilities = tuple(encoded.choice.probabilities)
    elif kind is QuestionKind.SCORE:
        probabilities = tuple(encoded.score.probabilities)
    abstention = None
    if encoded.abstention:
        abstention = _ABSTENTIONS.from_proto(encoded.abstention)
    return Decision(kind, probabilities, encoded.label_mass, encoded.name, abstention)
