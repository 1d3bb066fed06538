"""Whether a request's matcher lets the model think, and for how long."""

import pytest

from pagantic_common.testing.scripted_engine import ByteVocabulary
from services.inference.core.answers.dialect import VERBATIM, Dialect
from services.inference.core.answers.reasoning import ReasoningMatcher, with_reasoning
from services.inference.core.generation import Reasoning, ReasoningMode
from tests.unit.inference.test_reasoning_phase import OnlyDigits

THINKER = Dialect(is_reasoning_model=True)
THINKING = Dialect(is_in_reasoning=True)
OFF = Reasoning(ReasoningMode.OFF)


def matcher_of(answer, reasoning, dialect):
    return with_reasoning(answer, reasoning, dialect, ByteVocabulary(), lambda text: list(text.encode()))


@pytest.mark.parametrize(
    ("reasoning", "dialect"),
    [(Reasoning(), VERBATIM), (Reasoning(max_tokens=5), Dialect()), (OFF, THINKER)],
)
def test_without_thinking_the_answers_matcher_decides_alone(reasoning, dialect):
    answer = OnlyDigits()
    assert matcher_of(answer, reasoning, dialect) is answer


def test_free_thinking_before_a_free_answer_needs_no_matcher():
    assert matcher_of(None, Reasoning(), THINKER) is None


@pytest.mark.parametrize("dialect", [THINKER, THINKING])
@pytest.mark.parametrize(("answer", "reasoning"), [(OnlyDigits(), Reasoning()), (None, Reasoning(max_tokens=5))])
def test_a_constraint_or_a_limit_makes_a_matcher_that_lets_the_model_think(dialect, answer, reasoning):
    assert isinstance(matcher_of(answer, reasoning, dialect), ReasoningMatcher)


def test_reasoning_that_the_prompt_has_opened_is_closed_at_once_when_it_is_off():
    matcher = matcher_of(None, OFF, THINKING)
    assert bytes(matcher.forced_tokens()) == b"</think>\n\n"
