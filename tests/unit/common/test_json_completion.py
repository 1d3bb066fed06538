import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.client import partial_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("{", {}),
        ('{"a', {}),
        ('{"a": "so f', {"a": "so f"}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": tr', {"a": True}),
        ('{"a": 1} and', None),
        ("no JSON", None),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_a_beginning_has_the_value_that_it_has_so_far(text, value):
    assert partial_json(text) == value


@given(JSON.map(lambda value: {"answer": value}), st.data())
def test_a_streamed_answer_only_grows(value, data):
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    seen = [partial_json(text[:end]) for end in range(1, len(text) + 1)]
    assert all(isinstance(found, dict) for found in seen)
    assert seen[-1] == value
