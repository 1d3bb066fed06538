import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.constraint.core.repair.json_repair import is_json, repair_json

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
containers = documents.filter(lambda value: isinstance(value, dict | list))


@pytest.mark.parametrize(
    ("cut", "repaired"),
    [
        ('{"a": "x', '{"a": "x"}'),
        ('{"a": [1, {"b": "c', '{"a": [1, {"b": "c"}]}'),
        ('{"a": 1,', '{"a": 1}'),
        ('{"a": 1, "b', '{"a": 1}'),
        ('{"a": 1, "b"', '{"a": 1}'),
        ('{"a": 1, "b":', '{"a": 1}'),
        ('{"a": 1, "b": ', '{"a": 1}'),
        ('{"a": tr', '{"a": true}'),
        ('{"a": n', '{"a": null}'),
        ("[12.", "[12]"),
        ("[1, -", "[1]"),
        ("[1e+", "[1]"),
        ('{"a": -', "{}"),
        ("[", "[]"),
        ("{  \n", "{}"),
        ('["a\\', '["a"]'),
        ('["a\\u12', '["a"]'),
        ('["a\\ud83d', '["a"]'),
        ('["a\\\\ud83d', '["a\\\\ud83d"]'),
        ('"abc', '"abc"'),
    ],
)
def test_text_that_was_cut_off_is_completed(cut, repaired):
    result = repair_json(cut)
    assert (result.text, result.valid, result.level) == (repaired, True, 1)
    assert result.repairs


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Sure! Here it is:\n```\n{"a": 1\n```\nBye', {"a": 1}),
        ('The answer is {"a": 1}. Good luck!', {"a": 1}),
        ('See [the docs]: {"a": 1}', {"a": 1}),
        ("{'a': 'it\\'s', 'b': 'say \"hi\"'}", {"a": "it's", "b": 'say "hi"'}),
        ("{a: 1, b_2: True, c: None, d: False}", {"a": 1, "b_2": True, "c": None, "d": False}),
        ('{"a": 1, // one\n "b": [1, 2,], /* two */ # three\n}', {"a": 1, "b": [1, 2]}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": [1, 2, "b": 3}', {"a": [1, 2], "b": 3}),
        ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
        ("{'a': [1, {'b': 2", {"a": [1, {"b": 2}]}),
        ("{'a': 1, 'b", {"a": 1}),
        ('{"a": "line\nbreak\ttab"}', {"a": "line\nbreak\ttab"}),
        ('{"a": "C:\\q"}', {"a": "C:\\q"}),
        ("{“a”: “b”}", {"a": "b"}),
        ('{"a": +1.50, "b": .5, "c": 01}', {"a": 1.5, "b": 0.5, "c": 1}),
        ('{"a": NaN}', {"a": None}),
        ('{"a": 12345678901234567890.10,}', {"a": 12345678901234567890.10}),
        ('{"a": undefined, "b": [NaN]}', {"a": None, "b": [None]}),
        ('{"x": "He said "hi" to me", "y": 2}', {"x": 'He said "hi" to me', "y": 2}),
        ('{"a" 1, "b": 2}', {"a": 1, "b": 2}),
        ('{"items": [{"a": 1} {"a": 2}]}', {"items": [{"a": 1}, {"a": 2}]}),
        ('{"a": 1, "b": 2, ...}', {"a": 1, "b": 2}),
        ('{"id": ObjectId("12"), "at": ISODate("2020")}', {"id": "12", "at": "2020"}),
        ('callback({"a": 1});', {"a": 1}),
        ('{\\"a\\": \\"b\\"}', {"a": "b"}),
        ('See [1] for {"a": 1}.', {"a": 1}),
        ('{"a": 1}}', {"a": 1}),
        ('"a 24" screen"', 'a 24" screen'),
        ("007", 7),
        ('{"a": "x, y,"b": 1}', {"a": "x, y", "b": 1}),
        ('[\n  "a,\n  "b"\n]', ["a", "b"]),
        ('{"path": "C:\\docs\\new"}', {"path": "C:\\docs\\new"}),
        ("True", True),
        ("'x'", "x"),
        ("no json at all", None),
        ("I think {x} is {y}", None),
        ("I used [the docs] to answer", None),
        ("-or-", None),
        ("12 apples are here", None),
        ("2024-01-01", None),
        ("'tis the season", None),
        ("'Hello' and 'bye'", None),
        ("'it\\'s'", "it's"),
        ("4,", 4),
    ],
)
def test_text_around_and_dialects_are_forgiven(text, value):
    result = repair_json(text)
    if value is None:
        assert (result.valid, result.text) == (False, text)
    else:
        assert json.loads(result.text) == value
        assert result.repairs


def test_number_text_survives_the_second_level():
    assert "12345678901234567890.10" in repair_json('{"a": 12345678901234567890.10,}').text


@pytest.mark.parametrize("text", ["", "   ", "-", "}", "]", ":", ",", "//", "```"])
def test_what_cannot_be_repaired_is_returned_unchanged(text):
    result = repair_json(text)
    assert (result.text, result.valid) == (text, False)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, "'" * 100_000, "{a" * 50_000, "[" + "/*" * 50_000, '{"' * 40_000]
)
def test_deep_and_long_text_never_raises(text):
    repair_json(text)


@given(documents)
def test_valid_json_is_unchanged(value):
    text = json.dumps(value)
    result = repair_json(text)
    assert (result.text, result.level, result.repairs) == (text, 0, ())


@given(containers, st.booleans(), st.data())
def test_every_truncation_of_a_document_is_repaired(value, is_ascii, data):
    text = json.dumps(value, ensure_ascii=is_ascii)
    cut = text[: data.draw(st.integers(1, len(text)))]
    result = repair_json(cut)
    assert result.valid
    assert is_json(result.text)
    assert result.level <= 1


@given(st.text("{}[]\",:\\'`/*#-+.0159eEaTu \n", max_size=60))
def test_repair_is_idempotent_and_gives_json_or_the_text(text):
    first = repair_json(text)
    assert is_json(first.text) == first.valid
    assert first.valid or first.text == text
    second = repair_json(first.text)
    assert (second.text, second.valid) == (first.text, first.valid)


@pytest.mark.parametrize("text", ['{"a": }', '{"a": , "b": 1}', "{a, b}", '{"a": tru, "b": 1}'])
def test_no_value_is_made_up(text):
    result = repair_json(text)
    assert None not in json.loads(result.text).values() if result.valid else result.text == text
    assert "null" not in result.text
    assert '""' not in result.text


LEAVES = ("x", "it's", "a b", "1.50", "-0.25", "12345678901234567890.10", "true", "null")


@settings(deadline=None)  # the time is bounded by characters, and a busy machine is slow
@given(
    st.recursive(
        st.sampled_from(LEAVES),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=12,
    )
)
def test_every_scalar_of_a_repaired_text_stands_in_it(value):
    text = repr(value) + ","
    result = repair_json(text)
    assert json.loads(result.text) == value if result.valid and result.level == 2 else True


@settings(deadline=None)  # the time is bounded by characters, and a busy machine is slow
@given(st.text("{}[]\"',:`abc01.-+ \\n", max_size=40))
def test_what_is_read_leniently_has_no_scalar_that_the_text_lacks(text):
    result = repair_json(text)
    if result.valid and result.level == 2:
        waiting = [json.loads(result.text)]
        while waiting:
            item = waiting.pop()
            if isinstance(item, dict | list):
                waiting += [*item, *item.values()] if isinstance(item, dict) else item
            elif isinstance(item, str):
                assert set(item) - set(" \n\\") <= set(text)
            elif item is not None and not isinstance(item, bool):
                assert set(str(abs(int(item)))) <= set(text) | set("0")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"a": "\\ud83d"}\n```', {"a": "\ud83d"}),
        ("{'\\ud800': 1,}", {"\ud800": 1}),
        ('```\n["é\\udc00", "\\ud83d\\ude00"]\n```', ["é\udc00", "😀"]),
    ],
)
def test_half_of_a_surrogate_pair_stays_an_escape_that_can_be_sent(text, value):
    repaired = repair_json(text).text
    assert json.loads(repaired.encode()) == value
