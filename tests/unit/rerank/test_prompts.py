from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import Role
from services.rerank.core.prompts import (
    judge_messages,
    likelihood_messages,
    likelihood_of,
    probability_of_yes,
)

logprobs = st.floats(-1e6, 0)


@given(logprobs, logprobs)
def test_probabilities_of_yes_and_no_add_up(yes, no):
    assert probability_of_yes(yes, no) + probability_of_yes(no, yes) == pytest.approx(1.0)
    assert 0 <= probability_of_yes(yes, no) <= 1
    if yes > no:
        assert probability_of_yes(yes, no) >= 0.5


def test_probability_of_yes_is_its_share_of_both():
    assert probability_of_yes(math.log(0.3), math.log(0.1)) == pytest.approx(0.75)


@given(st.floats(-1e9, 0), st.integers(0, 1000))
def test_a_likelihood_is_in_its_range(logprob, token_count):
    assert -100 <= likelihood_of(logprob, token_count) <= 0


def test_a_likelihood_does_not_grow_with_the_number_of_tokens():
    assert likelihood_of(-6.0, 3) == likelihood_of(-20.0, 10) == -2.0


@given(st.text(alphabet="`a\n", max_size=60))
def test_no_chunk_ends_its_fence(chunk):
    for messages in (likelihood_messages(chunk), judge_messages("why", chunk)):
        (message,) = messages
        assert message.role is Role.USER
        lines = message.content.split("\n")
        (opened,) = [place for place, line in enumerate(lines) if line.endswith("in it):")]
        fence = lines[opened + 2]
        assert set(fence) == {"`"}
        rest = lines[opened + 3 :]
        closed = next(place for place, line in enumerate(rest) if line.startswith(fence))
        assert "\n".join(rest[:closed]) == chunk
