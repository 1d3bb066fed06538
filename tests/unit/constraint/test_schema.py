import json

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.json_text import JsonTextError
from services.constraint.core.model import Limits
from services.constraint.core.schema import build_validator, depth_of, find_violations, parse_schema

LIMITS = Limits(max_schema_bytes=1000, max_schema_depth=10, max_output_bytes=1000)


def messages(document: str, schema) -> list[str]:
    return [found.message for found in find_violations(document, build_validator(schema))]


@pytest.mark.parametrize(
    ("document", "schema", "expected"),
    [
        ("{}", {"required": ["x"]}, ['missing required field "x"']),
        ('{"a":{"b":{}}}', {"properties": {"a": {"properties": {"b": {"required": ["x"]}}}}},
         ['missing required field "x" at "a.b"']),
        ('{"a":{"b":["s"]}}', {"properties": {"a": {"properties": {"b": {"items": {"type": "integer"}}}}}},
         ['field "a.b[0]": expected type integer']),
        ('{"a":"w"}', {"properties": {"a": {"enum": ["x", "y", "z"]}}}, ['field "a": must be one of [x y z]']),
        ('{"a":"w"}', {"properties": {"a": {"enum": ["x", 1, None]}}}, ['field "a": must be one of [x 1 null]']),
        ("1", {"type": "object"}, ["expected type object"]),
        ('{"b":1,"c":2}', {"additionalProperties": False}, ['unexpected field "b"', 'unexpected field "c"']),
        ('{"a":"x"}', {"properties": {"a": {"format": "date"}}}, ['field "a": must be a valid date']),
        ('"abc"', {"maxLength": 2}, ["must have at most 2 characters"]),
        ("[1,1]", {"uniqueItems": True}, ["must have no equal items"]),
        ("4", {"maximum": 3}, ["must be at most 3"]),
        ("3", {"const": "x"}, ["must be x"]),
        ('{"x.y":1}', {"properties": {"x.y": {"type": "null"}}}, ['field "["x.y"]": expected type null']),
        ("3", False, ["is not allowed"]),
        ("1.0", {"type": "integer"}, []),
        ("123456789012345678901234567890", {"type": "integer"}, []),
        ("1e400", {"type": "number", "maximum": 5}, ["must be at most 5"]),
        ("{}", {"properties": {"a": {"default": 1}}, "required": ["a"]}, ['missing required field "a"']),
    ],
)  # fmt: skip
def test_violations_are_named_by_path(document, schema, expected):
    assert messages(document, schema) == expected


def test_violations_come_in_document_order():
    schema = {"properties": {"a": {"type": "null"}, "b": {"items": {"type": "null"}}}, "required": ["c"]}
    assert messages('{"b": [null, 1, 2], "a": 1}', schema) == [
        'missing required field "c"',
        'field "b[1]": expected type null',
        'field "b[2]": expected type null',
        'field "a": expected type null',
    ]


def test_codes_tell_enums_from_the_rest():
    schema = {"properties": {"a": {"enum": [1]}, "b": {"type": "null"}}}
    codes = [found.code for found in find_violations('{"a": 2, "b": 2}', build_validator(schema))]
    assert codes == [ErrorCode.CONSTRAINT_ENUM_UNRECOGNIZED, ErrorCode.CONSTRAINT_SCHEMA_INVALID]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "not valid at '/type'"),
        ({"$ref": "https://example.com/x.json"}, "remote $ref, which is refused: 'https://example.com/x.json'"),
        ({"$ref": "#/nowhere"}, "not valid"),
        ({"pattern": "a(?=b)"}, "not valid at '/pattern'"),
        ({"required": "a"}, "not valid at '/required'"),
    ],
)
def test_what_is_no_schema_is_refused_with_a_reason(schema, reason):
    with pytest.raises(InvalidRequest) as caught:
        build_validator(schema)
    assert reason in str(caught.value)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_each_draft_is_read_as_it_says():
    tuple_of_null = {"items": [{"type": "null"}]}  # a schema in draft-07 only
    assert messages("[1]", {"$schema": "http://json-schema.org/draft-07/schema#", **tuple_of_null}) != []
    assert messages("[1]", {"$schema": "https://json-schema.org/draft/2019-09/schema", **tuple_of_null}) != []
    with pytest.raises(InvalidRequest, match="not valid at '/items'"):
        build_validator(tuple_of_null)
    with pytest.raises(InvalidRequest, match=r"dialect is not known: \$schema is 'http://example\.com/mine'"):
        build_validator({"$schema": "http://example.com/mine"})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", ErrorCode.CONFIG_INVALID),
        ("[]", ErrorCode.CONFIG_INVALID),
        (json.dumps({"title": "x" * 1000}), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        ('{"not":' * 11 + "{}" + "}" * 11, ErrorCode.CONSTRAINT_TOO_COMPLEX),
    ],
)
def test_schema_text_is_bounded_and_parsed(text, code):
    with pytest.raises(InvalidRequest) as caught:
        parse_schema(text, LIMITS)
    assert caught.value.code is code


def test_depth_ignores_brackets_in_strings():
    assert depth_of(r'{"a": ["[[[\"{{{"]}') == 2


def test_hostile_pattern_is_linear():
    assert messages(json.dumps("a" * 50_000 + "!"), {"pattern": "^(a+)+$"}) != []


def test_document_that_is_no_json_is_an_error():
    with pytest.raises(JsonTextError):
        find_violations("{", build_validator({}))


@pytest.mark.parametrize("document", [r'{"\ud800": 1}', r'{"a": "\udc00"}', r'"\ud800"'])
def test_lone_surrogates_never_leave(document):
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}
    for found in find_violations(document, build_validator(schema)):
        assert (found.message + found.path).encode()


def test_names_and_paths_of_any_length_are_shown_short():
    document = json.dumps({"k" * 20_000: [1] * 1000})
    found = find_violations(document, build_validator({"additionalProperties": {"items": {"type": "string"}}}))
    assert len(found) == 1000
    assert max(len(one.path) + len(one.message) for one in found) < 1000
    (missing,) = find_violations("{}", build_validator({"required": ["r" * 20_000]}))
    assert len(missing.message) < 300


def test_the_text_of_a_pattern_does_not_decide_the_code():
    with pytest.raises(InvalidRequest) as caught:
        build_validator({"pattern": "(limit"})
    assert caught.value.code is ErrorCode.CONFIG_INVALID
