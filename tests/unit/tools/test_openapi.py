"""OpenAPI documents as operations, and calls as requests."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.grammar.arguments import ArgumentChecker
from services.tools.core.openapi.documents import refusal_of, translate
from services.tools.core.openapi.parameters import Supplied
from services.tools.core.openapi.requests import build_request
from tests.support.examples import examples

TEXT = {"type": "string"}


def document(operation=None, *, version="3.1.0", path="/things", method="post", schemas=None, **more):
    return {
        "openapi": version,
        "info": {"title": "t", "version": "1"},
        "paths": {path: {method: {"operationId": "run", **(operation or {})}}},
        "components": {"schemas": schemas or {}},
        **more,
    }


def with_body(schema, version="3.1.0", **schemas):
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return document({"requestBody": body}, version=version, schemas=schemas)


def with_parameter(version="3.1.0", method="get", path="/things", **parameter):
    return document(
        {"parameters": [{"name": "p", "in": "query", **parameter}]}, version=version, method=method, path=path
    )


def only(found):
    translation = translate(found)
    assert not translation.left_out
    (operation,) = translation.operations
    return operation


def reason(found):
    translation = translate(found)
    assert not translation.operations
    (left_out,) = translation.left_out
    return left_out.reason


def body_of(found):
    return json.loads(only(found).parameters_json)["properties"]["body"]


def test_schemas_that_are_referred_to_become_definitions():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/components/schemas/A"}, "b": {"$ref": "#/components/schemas/A"}},
    }
    parameters = json.loads(only(with_body(schema, A={"type": "integer", "example": 1})).parameters_json)
    assert parameters["$defs"] == {"A_0": {"type": "integer"}}
    assert parameters["properties"]["body"]["properties"] == {
        "a": {"$ref": "#/$defs/A_0"},
        "b": {"$ref": "#/$defs/A_0"},
    }
    assert parameters["required"] == ["body"]
    ArgumentChecker("run", json.dumps(parameters)).parse('{"body": {"a": 1}}')


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$ref": "#/components/schemas/S"}, "contains itself: circular schemas are not supported"),
        ({"$ref": "other.yaml#/Pet"}, "'other.yaml#/Pet', which is outside the document"),
        ({"$ref": "https://example.com/a.json"}, "which is outside the document"),
        ({"$ref": "#/components/schemas/None"}, "which the document does not have"),
        ({"$ref": "#name"}, "only references that begin with '#/'"),
        ({"$ref": {"type": "string"}}, "a '$ref' is not text"),
        ({"properties": {"$ref": TEXT}}, "has the name '$ref'"),
        ({"properties": {"$ref": "#/components/schemas/S"}}, "has the name '$ref'"),
        ({"properties": []}, "'properties' of a schema is not an object"),
        ({"allOf": {}}, "'allOf' of a schema is not a list"),
        ({"items": 3}, "a schema is not an object"),
        ({"$dynamicRef": "#x"}, "'$dynamicRef', which is not supported"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema, expected):
    assert expected in reason(with_body(schema, S={"items": {"$ref": "#/components/schemas/S"}}))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"enum": ["a"], "type": "string", "nullable": True}, {"enum": ["a", None], "type": ["string", "null"]}),
        ({"allOf": [TEXT], "nullable": True}, {"anyOf": [{"allOf": [TEXT]}, {"type": "null"}]}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        ({"type": "string", "example": "x", "x-y": 1}, {"type": "string"}),
    ],
)
def test_schemas_of_version_3_0_become_json_schema(schema, expected):
    assert body_of(with_body(schema, "3.0.3")) == expected


def test_properties_that_only_answers_have_are_left_out():
    schema = {"required": ["id", "name"], "properties": {"id": {"readOnly": True}, "name": TEXT}}
    assert body_of(with_body(schema)) == {"required": ["name"], "properties": {"name": TEXT}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (document({"servers": [{"url": "https://evil.example"}]}), "servers of its own"),
        (document(path="things"), "must begin with '/'"),
        (document(path="/things?id={id}"), "query of parameters"),
        (document(path="/things/{id}"), "do not agree about 'id'"),
        (document(method="head"), "HEAD has no answer"),
        (document({"requestBody": {"content": {"text/csv": {}}}}), "a body of 'text/csv'"),
        (with_parameter(style="matrix"), "has style 'matrix'"),
        (with_parameter(**{"in": "cookie", "required": True}), "needs the cookie 'p'"),
        (with_parameter(**{"in": "header", "name": "Host", "required": True}), "callers may not set"),
        (with_parameter(name="$ref"), "has the name '$ref'"),
        (with_parameter(**{"$ref": "#/paths/~1things/get/parameters/0"}), "refers to itself"),
        (with_parameter(**{"in": "body"}), "is in 'body', which is not supported"),
    ],
)
def test_an_operation_that_cannot_be_called_is_left_out_with_the_reason(found, expected):
    assert expected in reason(found)


def test_what_the_deployment_sends_is_no_argument():
    found = with_parameter(name="X-Key", **{"in": "header", "required": True})
    (operation,) = translate(found, supplied=Supplied(headers=frozenset({"x-key"}))).operations
    assert not operation.arguments


def test_parameters_of_one_name_are_distinguished_by_their_place():
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": TEXT},
        {"name": "id", "in": "query", "schema": TEXT},
    ]
    operation = only(document({"parameters": parameters}, path="/things/{id}", method="get"))
    assert list(operation.arguments) == ["id", "id_query"]
    assert build_request(operation, {"id": "a", "id_query": "b"}, {}).target == "/things/a?id=b"


def test_an_object_in_a_query_does_not_write_the_name_of_another_parameter():
    parameters = [
        {"name": "where", "in": "query", "schema": {"type": "object"}},
        {"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 10}},
    ]
    operation = only(document({"parameters": parameters}, method="get"))
    assert build_request(operation, {"where": {"age": 3}, "limit": 5}, {}).target == "/things?age=3&limit=5"
    with pytest.raises(ToolFailed, match="'limit', which is taken"):
        build_request(operation, {"where": {"limit": 99}}, {})


def test_a_body_of_any_type_is_sent_as_json():
    assert only(document({"requestBody": {"content": {"*/*": {"schema": TEXT}}}})).body.media_type == "*/*"


def test_a_query_in_a_path_is_sent_with_each_request():
    operation = only(document(path="/things?beta=true&x", method="get"))
    assert build_request(operation, {}, {"key": "k"}).target == "/things?beta=true&x=&key=k"


def test_operations_without_a_name_are_called_by_method_and_path():
    found = document(method="get", path="/a/b.c")
    del found["paths"]["/a/b.c"]["get"]["operationId"]
    assert only(found).name == "get_a_b_c"


def test_places_that_break_the_standard_leave_out_only_what_needs_them():
    found = document({"responses": {}}, method="get")
    assert translate(found, problems=[(("paths", "/things", "get", "responses"), "bad")]).operations
    broken = translate(found, problems=[(("paths", "/things", "get", "parameters", 0), "bad")])
    assert broken.left_out[0].reason == "it breaks the standard at 'get.parameters.0': bad"


@pytest.mark.parametrize(
    ("parameter", "value", "target"),
    [
        ({}, "a b&c/d", "?p=a%20b%26c%2Fd"),
        ({}, True, "?p=true"),
        ({}, None, ""),
        ({}, ["a", "b"], "?p=a&p=b"),
        ({"explode": False}, ["a,", "b"], "?p=a%2C,b"),
        ({"explode": False}, {"a": 1}, "?p=a,1"),
        ({}, {"a": 1, "b": "x"}, "?a=1&b=x"),
        ({"style": "spaceDelimited"}, ["a", "b"], "?p=a%20b"),
        ({"style": "spaceDelimited", "explode": True}, ["a", "b"], "?p=a&p=b"),
        ({"style": "pipeDelimited"}, ["a", "b"], "?p=a%7Cb"),
        ({"style": "deepObject"}, {"a": 1}, "?p%5Ba%5D=1"),
        ({"content": {"application/json": {}}}, {"a": [1]}, "?p=%7B%22a%22%3A%5B1%5D%7D"),
    ],
)
def test_query_parameters_are_written_in_their_styles(parameter, value, target):
    assert build_request(only(with_parameter(**parameter)), {"p": value}, {}).target == f"/things{target}"


@pytest.mark.parametrize(
    ("parameter", "value", "target"),
    [
        ({}, "a/b", "/things/a%2Fb"),
        ({}, ["a", "b"], "/things/a,b"),
        ({}, {"a": 1}, "/things/a,1"),
        ({"explode": True}, {"a": 1}, "/things/a=1"),
    ],
)
def test_path_parameters_are_written_in_their_styles(parameter, value, target):
    operation = only(with_parameter(path="/things/{p}", **{"in": "path", "required": True, **parameter}))
    assert build_request(operation, {"p": value}, {}).target == target


@pytest.mark.parametrize(
    ("found", "value", "expected"),
    [
        (with_parameter(), {"key": "mine"}, "'key', which is taken"),
        (with_parameter(), [["a"]], "a list or an object inside another"),
        (with_parameter(**{"in": "header"}), "a\r\nb: c", "only printable ASCII"),
        (with_parameter(path="/{p}", **{"in": "path"}), "", "'p' is empty"),
        (with_parameter(path="/{p}", **{"in": "path"}), "..", "a segment '.' or '..'"),
        (with_parameter(path="/.{p}", **{"in": "path"}), ".", "a segment '.' or '..'"),
        (with_parameter(), "x" * 9000, "at most 8192 fit"),
    ],
)
def test_arguments_that_would_make_another_request_are_refused(found, value, expected):
    with pytest.raises(ToolFailed, match=expected.replace(".", r"\.")):
        build_request(only(found), {"p": value}, {"key": "k"})


@pytest.mark.parametrize("value", [None, [], 3, {}, {"openapi": 3}, {"openapi": "3.0.0"}, {"swagger": []}])
def test_what_is_no_document_is_refused(value):
    assert refusal_of(value)
    assert not translate(value).operations


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["#/components/schemas/A", "#/paths"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4)
            | st.sampled_from(["$ref", "type", "properties", "items", "name", "in", "schema", "content"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
WHOLE = with_body(
    {"properties": {"a": {"$ref": "#/components/schemas/A"}}}, A={"type": "object", "properties": {"b": TEXT}}
)
WHOLE["paths"]["/things"]["get"] = {
    "parameters": [{"name": "q", "in": "query", "style": "form", "schema": {"type": "array", "items": TEXT}}],
}


def places_in(value, place=()):
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places_in(item, (*place, key))


PLACES = [place for place in places_in(WHOLE) if place]


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=4), st.sampled_from(["3.0.1", "3.1.0"]))
def test_no_document_raises_an_error(changes, version):
    found = copy.deepcopy(WHOLE)
    found["openapi"] = version
    for (*way, last), value in changes:
        parent = found
        for key in way:
            parent = parent[key] if isinstance(parent, dict) and key in parent else None
        if isinstance(parent, dict):
            parent[last] = value
    translation = translate(found)
    for operation in translation.operations:
        json.loads(operation.parameters_json)
    assert all(left_out.reason for left_out in translation.left_out)


@given(JSON)
def test_no_value_raises_an_error(value):
    translate(value)
    translate({"openapi": "3.1.0", "paths": value})
    translate({"openapi": "3.0.0", "paths": {"/a": {"get": value, "parameters": value}}})
