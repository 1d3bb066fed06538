from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import Role
from services.rerank.app.probability import (
    judge_messages,
    likelihood_messages,
    likelihood_of,
)


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
