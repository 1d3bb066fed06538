import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.grammar.engine_text import check_engine_text, engine_text_of_schema
from pagantic_common.grammar.json_schema import multiple_states, schema_for_engine
from services.constraint.core.grammars import derives

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
NUMBER_OR_TEXT = {"n": {"type": "integer"}, "s": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "derived", "not_derived"),
    [
        ({"$schema": DRAFT_4, "type": "integer", "minimum": 1, "exclusiveMinimum": True}, "2", "1"),
        ({"$schema": DRAFT_4, "type": "integer", "maximum": 1, "exclusiveMaximum": False}, "1", "2"),
        ({"$schema": DRAFT_7, "type": "array", "items": [{"type": "null"}], "additionalItems": False}, "[null]", "[1]"),
        ({"$schema": DRAFT_7, "$ref": "#/definitions/n", "type": "string", "definitions": NUMBER_OR_TEXT}, "1", '"x"'),
        ({"$ref": "#/definitions/n", "maximum": 5, "definitions": NUMBER_OR_TEXT}, "5", "6"),
        ({"$schema": DRAFT_4, "type": "integer", "const": "x"}, "1", '"x"'),
        ({"$schema": DRAFT_7, "type": "object", "required": ["const"], "properties": {"const": {"type": "null"}}},
         '{"const": null}', '{"const": 1}'),
        ({"$schema": DRAFT_4, "type": "object", "required": ["id", "b"],
          "properties": {"id": {"type": "integer"}, "b": {"$ref": "#/properties/id"}}},
         '{"id": 1, "b": 2}', '{"id": 1, "b": "x"}'),
        ({"$schema": "http://example.com/mine", "type": "integer"}, "1", '"x"'),
        ({"$schema": "https://json-schema.org/draft-04/schema", "type": "integer"}, "1", '"x"'),
        ({"type": "array", "items": {"$schema": "http://example.com/mine", "type": "integer"}}, "[1]", '["x"]'),
        ({"enum": [{"$ref": "a", "type": "b"}], "$schema": DRAFT_7}, '{"$ref": "a", "type": "b"}', '{"$ref": "a"}'),
    ],
)  # fmt: skip
def test_the_engine_decodes_what_the_schemas_own_draft_means(schema, derived, not_derived):
    text = engine_text_of_schema(json.dumps(schema))
    assert check_engine_text(text) == []
    assert derives(text, derived)
    assert not derives(text, not_derived)


def test_a_schema_of_the_newest_draft_is_left_as_it_is():
    schema = {
        "$ref": "#/$defs/a",
        "maximum": 3,
        "$defs": {"a": {"const": 1, "if": True, "examples": [{"$schema": "x"}]}},
    }
    assert schema_for_engine(schema) == schema


def test_what_a_reference_may_name_is_rewritten_too():
    schema = {"$schema": DRAFT_7, "types": {"a": {"$ref": "#/types/b", "type": "null"}, "const": {"if": 1}}}
    assert schema_for_engine(schema)["types"] == {"a": {"$ref": "#/types/b"}, "const": {"if": 1}}


def test_a_declared_key_is_never_decoded_twice():
    text = engine_text_of_schema(json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
    assert derives(text, '{"a": 1, "b": 2}')
    assert not derives(text, '{"a": 1, "a": 2}')


def states_by_trying(number):
    """Count the states of the smallest automaton, by refining a partition of the remainders until it is stable."""
    group_of = [remainder == 0 for remainder in range(number)]
    while True:
        seen = [
            (group_of[remainder], *(group_of[(10 * remainder + digit) % number] for digit in range(10)))
            for remainder in range(number)
        ]
        names = {key: name for name, key in enumerate(dict.fromkeys(seen))}
        refined = [names[key] for key in seen]
        if len(set(refined)) == len(set(group_of)):
            return len(set(refined))
        group_of = refined


@given(st.integers(1, 600).filter(lambda number: number % 10))
def test_the_states_that_count_multiples_are_never_fewer_than_reckoned_for_the_limit(number):
    assert states_by_trying(number) <= multiple_states(number) <= number


@pytest.mark.parametrize(
    ("divisor", "states"),
    [(999_961, 999_961), (65_536, 5_207), (10**300, 1), (0.01, 1), (1e-300, 1), (3.14159, 314_159)],
)
def test_states_depend_on_the_digits_of_a_divisor_and_not_on_its_size(divisor, states):
    assert multiple_states(divisor) == states
