import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.core.conversation.schema_form import form_of

TICKET = {
    "title": "Ticket",
    "type": "object",
    "properties": {
        "country": {"type": "string", "description": "ISO code", "minLength": 2, "maxLength": 2},
        "kind": {"enum": ["bug", "wish"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "owner": {"$ref": "#/$defs/Person"},
        "due": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["country", "kind", "owner"],
    "additionalProperties": False,
    "$defs": {"Person": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}


def test_an_object_is_shown_with_its_types_and_comments():
    assert (
        form_of(TICKET)
        == """// Ticket
{
  "country": string, // ISO code; minLength 2; maxLength 2
  "kind": "bug" | "wish",
  "tags"?: string[],
  "owner": {
    "name": string,
  },
  "due"?: string | null,
}"""
    )


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "string"},
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"$ref": "other.json"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "array", "items": [{"type": "string"}]},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "object", "properties": 5}}},
        {"type": "object", "properties": {"a": {"enum": 5}}},
    ],
)
def test_what_a_form_cannot_show_is_left_to_the_schema(schema):
    assert form_of(schema) is None


def test_an_array_of_unions_keeps_its_brackets():
    schema = {"type": "array", "items": {"type": ["string", "integer"]}}
    assert form_of(schema) == "(string | integer)[]"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*sorted(TICKET), "items"]), inner),
    max_leaves=12,
)


@given(JSON)
def test_any_json_has_a_form_or_none(schema):
    form = form_of(json.loads(json.dumps(schema)))
    assert form is None or isinstance(form, str)


def test_references_that_multiply_have_an_end():
    level = {"type": "object", "properties": {f"p{number}": {"$ref": "#/$defs/next"} for number in range(30)}}
    last = {"type": "object", "properties": {"x": {"type": "string"}}}
    defs = {
        "next": {**level, "properties": {name: {"$ref": "#/$defs/last"} for name in level["properties"]}},
        "last": last,
    }
    assert form_of({**level, "$defs": defs}) is None
