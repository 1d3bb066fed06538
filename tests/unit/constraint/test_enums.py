import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.constraint.core.repair.enums import normalize_enums

COLOR = {"enum": ["red", "Green", "BLUE", 1, None]}


@pytest.mark.parametrize(
    ("document", "schema", "expected", "changed"),
    [
        ('"RED"', COLOR, '"red"', [""]),
        ('{"a":  "GREEN", "n": 1.50}', {"properties": {"a": COLOR}}, '{"a":  "Green", "n": 1.50}', ["a"]),
        ('{"l":["blue","x"]}', {"properties": {"l": {"items": COLOR}}}, '{"l":["BLUE","x"]}', ["l[0]"]),
        ('["Red", "Red"]', {"prefixItems": [COLOR]}, '["red", "Red"]', ["[0]"]),
        ('{"z":{"k":"RED"}}',
         {"additionalProperties": {"$ref": "#/$defs/c"}, "$defs": {"c": {"properties": {"k": COLOR}}}},
         '{"z":{"k":"red"}}', ["z.k"]),
        ('"RED"', {"anyOf": [{"type": "null"}, COLOR]}, '"red"', [""]),
        ('"AB"', {"enum": ["ab", "Ab"]}, '"AB"', []),
        ('"ab"', {"enum": ["ab", "AB"]}, '"ab"', []),
        ('"STRASSE"', {"enum": ["Straße"]}, '"Straße"', [""]),
        ('{"RED": "RED"}', {"enum": ["red"]}, '{"RED": "RED"}', []),
        ("not json", COLOR, "not json", []),
        ('"RED"', {"$ref": "#"}, '"RED"', []),
        ('"RED"', True, '"RED"', []),
        ('{"a": "RED", "a": "rEd"}', {"properties": {"a": COLOR}}, '{"a": "red", "a": "red"}', ["a", "a"]),
    ],
)  # fmt: skip
def test_values_that_differ_in_case_take_the_declared_form(document, schema, expected, changed):
    assert normalize_enums(document, schema) == (expected, tuple(changed))


@given(st.lists(st.sampled_from(COLOR["enum"]) | st.floats(allow_nan=False, allow_infinity=False)))
def test_matching_values_never_change(values):
    text = json.dumps(values)
    assert normalize_enums(text, {"items": COLOR}) == (text, ())


@given(st.lists(st.text(max_size=4)), st.lists(st.text(max_size=4)))
def test_only_case_changes(values, options):
    text, _ = normalize_enums(json.dumps(values), {"items": {"enum": options}})
    assert [value.casefold() for value in json.loads(text)] == [value.casefold() for value in values]
