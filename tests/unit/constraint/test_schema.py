import json
import time

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError
from pagantic_common.grammar.json_schema import read_dialect
from services.constraint.core.model import Limits
from services.constraint.core.schema import depth_of, find_violations, parse_schema, validator_of

LIMITS = Limits(max_schema_bytes=1000, max_schema_depth=10, max_output_bytes=1000)


def messages(document: str, schema) -> list[str]:
    return [found.message for found in find_violations(document, validator_of(schema))]


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
    codes = [found.code for found in find_violations('{"a": 2, "b": 2}', validator_of(schema))]
    assert codes == [ErrorCode.CONSTRAINT_ENUM_UNRECOGNIZED, ErrorCode.CONSTRAINT_SCHEMA_INVALID]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "not valid at '/type'"),
        ({"$ref": "https://example.com/x.json"}, "remote $ref, which is refused: 'https://example.com/x.json'"),
        ({"$ref": "#/nowhere"}, "not valid"),
        ({"pattern": "a(?=b)"}, "has a pattern at '/pattern' with look-around or a back-reference, which the engine"),
        ({"patternProperties": {r"(a)\1": {}}}, "a back-reference, which the engine does not have"),
        ({"pattern": "a(?=b"}, 'not valid at \'/pattern\': "a(?=b" is not a "regex"'),
        ({"required": "a"}, "not valid at '/required'"),
    ],
)
def test_what_is_no_schema_is_refused_with_a_reason(schema, reason):
    with pytest.raises(InvalidRequest) as caught:
        validator_of(schema)
    assert reason in str(caught.value)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize("draft", ["4", "6", "7"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("end", ["", "#"])
def test_a_draft_is_known_by_either_scheme_and_with_or_without_a_fragment(draft, scheme, end):
    dialect = f"{scheme}://json-schema.org/draft-0{draft}/schema{end}"
    assert messages("[1]", {"$schema": dialect, "items": [{"type": "null"}]}) == ['field "[0]": expected type null']


@pytest.mark.parametrize(
    ("document", "schema", "expected"),
    [
        ("1", {"minimum": 1, "exclusiveMinimum": True}, ["must be greater than 1"]),
        ("1", {"minimum": 1, "exclusiveMinimum": False}, []),
        ("1", {"maximum": 1, "exclusiveMaximum": True}, ["must be less than 1"]),
        ("[1,2]", {"items": [{}], "additionalItems": False}, ["has items beyond those that the schema describes"]),
        ('{"a":1}', {"dependencies": {"a": ["b"]}}, ['missing required field "b"']),
        ('{"a":1}', {"$ref": "#/definitions/o", "definitions": {"o": {"required": ["b"]}}},
         ['missing required field "b"']),
        ('"x"', {"$ref": "#/definitions/s", "type": "null", "definitions": {"s": {"type": "string"}}}, []),
        ("1.0", {"type": "integer"}, ["expected type integer"]),
        ('{"id":1}', {"properties": {"id": {"type": "integer"}}}, []),
        ('{"b":"x"}', {"id": "http://example.com/r", "properties": {"b": {"$ref": "#n"}},
                       "definitions": {"n": {"id": "#n", "type": "null"}}}, ['field "b": expected type null']),
        ("1", {"const": 2}, []),
    ],
)  # fmt: skip
def test_draft_04_means_what_it_meant(document, schema, expected):
    assert messages(document, {"$schema": DRAFT_4, **schema}) == expected


def test_a_later_draft_has_other_keywords():
    tuple_of_null = {"items": [{"type": "null"}]}
    assert messages("[1]", {"$schema": "https://json-schema.org/draft/2019-09/schema", **tuple_of_null}) != []
    with pytest.raises(InvalidRequest, match="not valid at '/items'"):
        validator_of(tuple_of_null)
    with pytest.raises(InvalidRequest, match="not valid at '/exclusiveMinimum'"):
        validator_of({"$schema": DRAFT_7, "minimum": 1, "exclusiveMinimum": True})


@pytest.mark.parametrize("name", ["http://example.com/mine", "http://json-schema.org/draft-03/schema#", 7, None])
def test_a_dialect_that_is_not_known_is_read_as_the_newest_with_a_warning(name):
    schema = {"$schema": name, "prefixItems": [{"type": "null"}]}
    assert messages("[1]", schema) == ['field "[0]": expected type null']
    _, warning = read_dialect(schema)
    assert f"$schema {str(name)!r} is not known: the schema was read as draft 2020-12" in warning


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
        find_violations("{", validator_of({}))


@pytest.mark.parametrize("document", [r'{"\ud800": 1}', r'{"a": "\udc00"}', r'"\ud800"'])
def test_lone_surrogates_never_leave(document):
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}
    for found in find_violations(document, validator_of(schema)):
        assert (found.message + found.path).encode()


def test_names_and_paths_of_any_length_are_shown_short():
    document = json.dumps({"k" * 20_000: [1] * 1000})
    found = find_violations(document, validator_of({"additionalProperties": {"items": {"type": "string"}}}))
    assert len(found) == 1000
    assert max(len(one.path) + len(one.message) for one in found) < 1000
    (missing,) = find_violations("{}", validator_of({"required": ["r" * 20_000]}))
    assert len(missing.message) < 300


def test_the_text_of_a_pattern_does_not_decide_the_code():
    with pytest.raises(InvalidRequest) as caught:
        validator_of({"pattern": "(limit"})
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_half_of_a_surrogate_pair_is_told_in_our_words():
    (message,) = messages(r'"\ud800"', {"maxLength": 5})
    assert message == "the document cannot be checked: an escape gives half of a surrogate pair"


def test_a_key_that_is_given_twice_is_found_in_linear_time():
    """The bound is 1 s of processor time for 30,000 keys, of which only the last comes again."""
    keys = [f'"key {number}": 1' for number in range(30_000)]
    started_s = time.process_time()
    with pytest.raises(JsonTextError, match='"key 29999" more than once'):
        find_violations("{" + ", ".join([*keys, keys[-1]]) + "}", validator_of({}))
    assert time.process_time() - started_s < 1
