"""Forms of which some properties cannot be sent: what is offered can be called."""

import json

import pytest

from pagantic_common.grammar.arguments import ArgumentChecker
from services.tools.core.openapi.requests import build_request
from tests.unit.tools.test_openapi import TEXT, document, only, reason, with_body
from tests.unit.tools.test_openapi_forms import DEEP, MULTIPART, TEXTS, URLENCODED, form, parts_of

DEEP_OBJECT = {"p": {"style": "deepObject"}}
READ_ONLY = {"type": "string", "readOnly": True}
BOUND = [
    {"minProperties": 2},
    {"dependentRequired": {"q": ["p"]}},
    {"dependentSchemas": {"q": {"required": ["p"]}}},
    {"if": {"required": ["q"]}, "then": {"required": ["p"]}},
    {"if": {"required": ["p"]}, "else": {"required": ["p"]}},
]


def body_of(found):
    return json.loads(only(found).parameters_json)["properties"]["body"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\r\nb"])
def test_a_property_whose_name_fits_no_part_is_no_argument(name):
    operation = only(form({name: TEXT, "q": TEXT}, kind=MULTIPART))
    assert list(operation.body.fields) == ["q"]
    assert "the name of a part must be printable" in operation.left_out[name]
    assert list(only(form({name: TEXT})).body.fields) == [name]
    assert "the name of a part must be printable" in reason(form({name: TEXT}, kind=MULTIPART, required=[name]))


@pytest.mark.parametrize("bound", BOUND)
@pytest.mark.parametrize(
    "found",
    [
        lambda more: form({"p": DEEP, "q": TEXT}, DEEP_OBJECT, **more),
        lambda more: form({"p": READ_ONLY, "q": TEXT}, **more),
        lambda more: with_body(
            {"properties": {"p": READ_ONLY, "q": TEXT}, "required": ["q"], "additionalProperties": False, **more}
        ),
    ],
)
def test_what_is_bound_to_properties_that_are_left_out_does_not_hold(found, bound):
    operation = only(found(bound))
    arguments = ArgumentChecker("run", operation.parameters_json).parse('{"body": {"q": "x"}}')
    assert build_request(operation, arguments, {}).content.text in {"q=x", '{"q":"x"}'}


def test_what_is_bound_to_properties_that_are_all_sent_holds():
    bound = {"minProperties": 2, "dependentRequired": {"q": ["p"]}}
    body = body_of(form({"p": TEXT, "q": TEXT}, **bound))
    assert {keyword: body[keyword] for keyword in bound} == bound


def test_a_form_that_wants_more_properties_than_it_declares_is_left_out():
    assert reason(form({"p": TEXT}, minProperties=2)) == "its form needs 2 properties, and declares 1"


def both(schema, encoding):
    content = {kind: {"schema": schema, "encoding": encoding} for kind in (URLENCODED, MULTIPART)}
    return document({"requestBody": {"required": True, "content": content}}, version="3.0.3")


def test_a_form_that_cannot_be_encoded_is_sent_in_parts():
    schema = {"type": "object", "properties": {"p": TEXTS}, "required": ["p"]}
    assert parts_of(both(schema, DEEP_OBJECT), p=["a"]) == [("p", None, None, b"a")]


def test_a_form_that_cannot_be_sent_in_either_way_has_the_reason_of_the_first():
    schema = {"type": "object", "properties": {"p": DEEP}, "required": ["p"]}
    encoding = {"p": {"style": "deepObject", "contentType": "text/csv"}}
    assert "'deepObject' cannot write" in reason(both(schema, encoding))
