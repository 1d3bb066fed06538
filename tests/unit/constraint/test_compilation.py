import json

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from services.constraint.core.compilation import Source, SourceKind, Unsupported, compile_source
from services.constraint.core.model import Limits

LIMITS = Limits(max_schema_bytes=2000, max_schema_depth=20, max_output_bytes=1000)


def schema(value) -> Source:
    return Source(SourceKind.SCHEMA, json.dumps(value))


def test_what_decoding_cannot_enforce_is_listed_by_pointer():
    compiled = compile_source(
        schema(
            {
                "type": "object",
                "properties": {
                    "uniqueItems": {"type": "string", "format": "color"},
                    "a/b": {"type": "array", "uniqueItems": True},
                    "c": {"enum": [{"not": 1}], "oneOf": [{"type": "object"}, {"minProperties": 1}]},
                },
                "required": ["uniqueItems", "a/b", "c"],
            }
        ),
        LIMITS,
    )
    assert set(compiled.unsupported) == {
        Unsupported("format", "/properties/uniqueItems/format"),
        Unsupported("uniqueItems", "/properties/a~1b/uniqueItems"),
        Unsupported("oneOf", "/properties/c/oneOf"),
    }


def test_numbers_that_decoding_would_round_are_listed():
    large = 2**53 + 1
    compiled = compile_source(
        schema({"properties": {"a": {"const": large}, "b": {"enum": [1, large]}, "c": {"maximum": large}}}), LIMITS
    )
    assert set(compiled.unsupported) == {
        Unsupported("const", "/properties/a/const"),
        Unsupported("enum", "/properties/b/enum"),
        Unsupported("maximum", "/properties/c/maximum"),
    }
    bound = compile_source(schema({"type": "integer", "maximum": 2**63 - 1}), LIMITS)
    assert bound.unsupported == (Unsupported("maximum", "/maximum"),)


def test_a_multiple_that_would_take_seconds_to_build_is_left_to_the_check_after_decoding():
    place = "/properties/a/multipleOf"
    compiled = compile_source(
        schema({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 999_961}}}), LIMITS
    )
    assert compiled.unsupported == (Unsupported("multipleOf", place),)


@pytest.mark.parametrize(("divisors", "is_enforced"), [((97, 89), True), ((0.01, 12, 48), True), ((1009, 997), False)])
def test_multiples_that_would_together_take_seconds_are_left_to_the_check_after_decoding(divisors, is_enforced):
    several = [{"multipleOf": divisor} for divisor in divisors]
    compiled = compile_source(schema({"type": "number", "allOf": several}), LIMITS)
    places = tuple(Unsupported("multipleOf", f"/allOf/{number}/multipleOf") for number in range(len(divisors)))
    assert compiled.unsupported == (() if is_enforced else places)


def test_schema_that_decoding_enforces_has_nothing_unsupported():
    assert compile_source(schema({"type": "string", "maxLength": 65535}), LIMITS).unsupported == ()


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (Source(SourceKind.SCHEMA, "{"), ErrorCode.CONFIG_INVALID),
        (schema({"type": "strin"}), ErrorCode.CONFIG_INVALID),
        (schema({"$ref": "http://example.com/a"}), ErrorCode.CONFIG_INVALID),
        (schema(False), ErrorCode.CONFIG_INVALID),
        (Source(SourceKind.SCHEMA, '{"x": 1e999}'), ErrorCode.CONFIG_INVALID),
        (Source(SourceKind.SCHEMA, r'{"description": "\ud800"}'), ErrorCode.CONFIG_INVALID),
        (schema({"title": "x" * 2000}), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (Source(SourceKind.GRAMMAR, "rootRule ::= a"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.GRAMMAR, "#" * 2001), ErrorCode.CONSTRAINT_TOO_COMPLEX),
        (Source(SourceKind.REGEX, "("), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.REGEX, "(limit"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.REGEX, "[panic:"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.REGEX, "a{2,1}exceeds"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
        (Source(SourceKind.VALUES, "[]"), ErrorCode.CONSTRAINT_GRAMMAR_INVALID),
    ],
)
def test_source_that_cannot_be_compiled_says_whose_fault_it_is(source, code):
    with pytest.raises(InvalidRequest) as caught:
        compile_source(source, LIMITS)
    assert caught.value.code is code


def test_hash_tells_kinds_apart():
    hashes = {Source(kind, "a").hash for kind in SourceKind}
    assert len(hashes) == len(SourceKind)
