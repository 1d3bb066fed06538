import numpy as np
import pytest

from pagantic_common.testing.scripted_engine import ByteVocabulary
from services.inference.core.answers.reasoning import ReasoningFormat, ReasoningMatcher

OPEN = ord("<")
CLOSING = b"</t>"
VOCABULARY = ByteVocabulary()


class OnlyDigits:
    """Allows one digit."""

    def __init__(self, taken=0):
        self.taken = taken

    def mask(self, logits):
        allowed = np.full_like(logits, -np.inf)
        allowed[ord("0") : ord("9") + 1] = logits[ord("0") : ord("9") + 1]
        return allowed

    def accept(self, token):
        assert ord("0") <= token <= ord("9")
        self.taken += 1

    def forced_tokens(self):
        return []

    def is_complete(self):
        return self.taken == 1

    def is_stopped(self):
        return self.taken == 1

    def fork(self):
        return OnlyDigits(self.taken)


def matcher(answer=None, *, limit=None, is_open=True):
    form = ReasoningFormat(OPEN, CLOSING, tuple(CLOSING + b"\n\n"), limit)
    return ReasoningMatcher(form, answer, VOCABULARY, is_open=is_open)


def allowed(of):
    masked = of.mask(np.zeros(VOCABULARY.size, dtype=np.float32))
    return {int(token) for token in np.flatnonzero(np.isfinite(masked))}


def feed(of, text):
    for token in text:
        of.accept(token)


def test_reasoning_is_free_but_may_not_end_the_output_and_the_answer_is_bound():
    thinking = matcher(OnlyDigits())
    assert allowed(thinking) == set(range(VOCABULARY.size)) - VOCABULARY.end_tokens
    feed(thinking, b"1 < 2 </ hm")
    assert not thinking.is_complete()
    feed(thinking, CLOSING)
    assert allowed(thinking) == set(range(ord("0"), ord("9") + 1))
    feed(thinking, b"7")
    assert thinking.is_complete()
    assert thinking.is_stopped()


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_at_the_limit_only_the_closing_tokens_may_come(limit):
    thinking = matcher(OnlyDigits(), limit=limit)
    feed(thinking, b"x" * limit)
    assert thinking.forced_tokens() == list(CLOSING + b"\n\n")
    for token in CLOSING + b"\n\n":
        assert allowed(thinking) == {token}
        thinking.accept(token)
    assert allowed(thinking) == set(range(ord("0"), ord("9") + 1))


def test_a_model_may_begin_with_its_answer_or_with_reasoning():
    before = matcher(OnlyDigits(), is_open=False)
    assert allowed(before) == {OPEN, *range(ord("0"), ord("9") + 1)}
    thinks = before.fork()
    thinks.accept(OPEN)
    assert len(allowed(thinks)) == VOCABULARY.size - 1
    before.accept(ord("3"))
    assert before.is_complete()


def test_a_fork_goes_on_by_itself():
    thinking = matcher(OnlyDigits(), limit=3)
    feed(thinking, b"ab")
    other = thinking.fork()
    feed(other, b"c")
    assert other.forced_tokens()
    assert thinking.forced_tokens() == []


def test_a_free_answer_follows_a_limited_reasoning():
    thinking = matcher(None, limit=1)
    feed(thinking, b"x" + CLOSING + b"\n\n")
    assert len(allowed(thinking)) == VOCABULARY.size
    assert not thinking.is_complete()
