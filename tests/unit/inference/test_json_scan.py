import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.core.answers.answer_text import JsonScan

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('ab"\\{}[],: \n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\{}', max_size=4), inner, max_size=4),
    max_leaves=10,
)


def scanned(text):
    """Return how many characters belong to the value, and whether it is complete."""
    scan = JsonScan()
    size = next((index for index, char in enumerate(text) if not scan.take(char)), len(text))
    return size, scan.is_complete


@given(values, st.sampled_from([None, 2]), st.sampled_from([",", "}", "]", " ", "\n", ":"]), st.text(max_size=5))
def test_a_value_ends_where_its_text_does(value, indent, delimiter, rest):
    text = json.dumps(value, indent=indent)
    assert scanned(text + delimiter + rest) == (len(text), True)


@given(st.lists(values) | st.dictionaries(st.text(), values) | st.text(), st.data())
def test_a_string_or_container_is_complete_with_its_last_character_and_not_before(value, data):
    text = json.dumps(value)
    assert scanned(text) == (len(text), True)
    size = data.draw(st.integers(0, len(text) - 1))
    assert scanned(text[:size]) == (size, False)


@pytest.mark.parametrize("text", ['{"a"}b', '"a"b', "[][", '""""'])
def test_nothing_belongs_to_a_value_that_has_ended(text):
    size, is_complete = scanned(text)
    assert is_complete
    assert size < len(text)
