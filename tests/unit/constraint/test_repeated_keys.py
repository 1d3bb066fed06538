import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.constraint.core.repair.repeated_keys import without_repeated_keys


@pytest.mark.parametrize(
    ("text", "kept", "keys"),
    [
        ('{"a": 1}', '{"a": 1}', ()),
        ('{"a": 1, "a": 2}', '{"a": 2}', ("a",)),
        ('{"a": 1, "b": [1.0,  2], "a": 2, "a": 3}', '{"b": [1.0,  2], "a": 3}', ("a",)),
        ('{"a": {"x": 1, "x": 2}, "b": ",{\\"", "a": null}', '{"b": ",{\\"", "a": null}', ("x", "a")),
        ('[{"a": 1, "\\u0061": 2}, {"a": 3}]', '[{"\\u0061": 2}, {"a": 3}]', ("a",)),
        ('{"a": "a", "b": "a"}', '{"a": "a", "b": "a"}', ()),
    ],
)
def test_the_last_member_of_a_key_is_kept_and_nothing_else_changes(text, kept, keys):
    assert without_repeated_keys(text) == (kept, keys)


def members(inner):
    return st.lists(st.tuples(st.sampled_from("abc"), inner), max_size=5).map(
        lambda pairs: "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"
    )


texts = st.recursive(
    st.sampled_from(["1", '"x"', "null", '"{,}"']),
    lambda inner: members(inner) | st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
)


@given(texts)
def test_any_reader_gets_what_one_gets_that_takes_the_last_value(text):
    kept, _ = without_repeated_keys(text)
    assert json.loads(kept) == json.loads(text)
    assert without_repeated_keys(kept) == (kept, ())
