from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from services.tools.adapters.builtin.sql import rows_to_json

VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(max_size=20)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=20), st.integers(1, 10), st.integers(200, 2000))
def test_rows_are_json_within_their_limits(rows, max_rows, max_bytes):
    try:
        text = rows_to_json(["a", "b"], rows, max_rows, max_bytes)
    except InvalidRequest:
        return
    assert len(text.encode()) <= max_bytes
    parsed = json.loads(text)
    assert len(parsed["rows"]) <= max_rows
    assert parsed["is_truncated"] == (len(parsed["rows"]) < len(rows))


def test_values_that_json_lacks_become_words():
    assert json.loads(rows_to_json(["a"], [(b"xy",), (float("inf"),)], 9, 999))["rows"] == [["<2 bytes>"], ["inf"]]


def test_a_row_that_does_not_fit_is_an_error():
    with pytest.raises(InvalidRequest, match="select fewer columns"):
        rows_to_json(["a"], [("x" * 1000,)], 9, 500)
