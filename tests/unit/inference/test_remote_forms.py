"""Answers of remote engines in whatever form: they are read, or refused by one kind of error."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.adapters.remote.forms import chunk_of, embeddings_of
from services.inference.core.remote.answers import Chunk

OUTER = ("choices", "index", "delta", "content", "logprobs", "tool_calls", "function", "usage", "finish_reason", "data")
INNER = ("bytes", "prompt_tokens", "id", "token", "logprob", "top_logprobs", "tokens", "token_logprobs", "embedding")
NAMES = st.sampled_from((*OUTER, *INNER))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
ALTERNATIVES = st.fixed_dictionaries({}, optional={"token": VALUES, "id": VALUES, "bytes": VALUES, "logprob": VALUES})
CHOICES = st.fixed_dictionaries(
    {"index": st.integers(0, 2)},
    optional={
        "delta": st.fixed_dictionaries({}, optional={"content": VALUES, "tool_calls": VALUES, "reasoning": VALUES}),
        "logprobs": st.fixed_dictionaries(
            {}, optional={"content": st.lists(ALTERNATIVES, max_size=2), "tokens": VALUES}
        ),
        "finish_reason": VALUES,
    },
)


@given(VALUES | st.fixed_dictionaries({"choices": st.lists(CHOICES, max_size=2), "usage": VALUES}))
def test_any_json_is_a_chunk_or_refused(data):
    try:
        chunk = chunk_of(data)
    except ValueError:
        return
    assert isinstance(chunk, Chunk)
    for piece in chunk.choices:
        piece.content.encode()
        for logprob in piece.logprobs:
            assert -9999.0 <= logprob.logprob <= 0.0
            assert -1 <= logprob.token < 2**31


@given(VALUES | st.fixed_dictionaries({"data": VALUES}))
def test_any_json_is_vectors_or_refused(data):
    try:
        vectors, tokens = embeddings_of(data)
    except ValueError:
        return
    assert vectors.ndim in (1, 2)
    assert tokens >= 0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_components_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match="finite"):
        embeddings_of({"data": [{"index": 0, "embedding": [value]}]})


def test_null_stands_for_every_default():
    delta = {"content": None, "tool_calls": None, "reasoning": None}
    chunk = chunk_of(
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}], "usage": None}
    )
    assert (chunk.choices[0].content, chunk.choices[0].finish_reason, chunk.counts) == ("", "", None)
