"""Vectors in the form that clients ask for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.pooling import shortened
from pagantic_common.domain.errors import InvalidRequest

VECTORS = st.lists(st.floats(-1, 1).filter(lambda value: not value or abs(value) > 1e-6), min_size=1, max_size=20)


@given(VECTORS, st.integers(1, 20))
def test_a_shorter_vector_has_unit_length_and_the_direction_of_the_beginning(vector, dimensions):
    if dimensions > len(vector):
        with pytest.raises(InvalidRequest, match=f"dimensions is {dimensions}"):
            shortened(vector, dimensions)
        return
    short, beginning = shortened(vector, dimensions), vector[:dimensions]
    assert len(short) == dimensions
    if dimensions == len(vector):
        assert short == vector
    elif any(beginning):
        assert math.hypot(*short) == pytest.approx(1)
        assert [value * math.hypot(*beginning) for value in short] == pytest.approx(beginning)
    else:
        assert short == beginning
