from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound
from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.grammar.arguments import ArgumentChecker, InvalidArguments
from services.tools.app.registry import ToolRegistry

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z]"},
            "days": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
)


@dataclass
class Named:
    definition: ToolDefinition


def named(name, parameters_json='{"type": "object"}'):
    return Named(ToolDefinition(name=name, description="", parameters_json=parameters_json))


def test_duplicate_name_is_refused_at_registration():
    with pytest.raises(InvalidRequest, match="'a' is registered already"):
        ToolRegistry([named("a"), named("a")])


@pytest.mark.parametrize("name", ["", "a b", "ä", "a" * 65, "a.b"])
def test_bad_name_is_refused_at_registration(name):
    with pytest.raises(InvalidRequest, match="does not match"):
        ToolRegistry([named(name)])


@pytest.mark.parametrize(
    "parameters_json",
    [
        "",
        "{",
        "[]",
        "true",
        "{}",
        '{"type": "array"}',
        '{"type": "objct"}',
        '{"type": "object", "properties": {"a": {"pattern": "("}}}',
    ],
)
def test_parameters_that_are_no_object_schema_are_refused_at_registration(parameters_json):
    with pytest.raises(InvalidRequest, match="parameters of tool 'a'"):
        ToolRegistry([named("a", parameters_json)])


TUPLE = {"type": "object", "properties": {"at": {"items": [{"type": "number"}], "additionalItems": False}}}
BOUND = {"type": "object", "properties": {"at": {"minimum": 0, "exclusiveMinimum": True}}}


@pytest.mark.parametrize(
    ("draft", "schema", "wrong", "right"),
    [
        ("http://json-schema.org/draft-07/schema#", TUPLE, '{"at": [1, 2]}', '{"at": [1]}'),
        ("http://json-schema.org/draft-06/schema", TUPLE, '{"at": ["x"]}', '{"at": []}'),
        ("https://json-schema.org/draft-04/schema#", BOUND, '{"at": 0}', '{"at": 1}'),
    ],
)
def test_parameters_are_read_by_their_own_draft(draft, schema, wrong, right):
    checker = ArgumentChecker("map", json.dumps({"$schema": draft, **schema}))
    assert checker.parse(right) == json.loads(right)
    with pytest.raises(InvalidArguments, match="'at"):
        checker.parse(wrong)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://example.com/x"}, "has a remote \\$ref, which is refused"),
        (
            {"properties": {"a": {"pattern": "(?!x)"}}},
            "look-around or a back-reference, which the engine",
        ),
    ],
)
def test_parameters_that_cannot_be_checked_say_why(schema, reason):
    with pytest.raises(InvalidRequest, match=reason):
        ArgumentChecker("map", json.dumps({"type": "object", **schema}))


def test_tools_are_listed_by_name():
    registry = ToolRegistry([named("b"), named("a"), named("c")])
    assert [tool.definition.name for tool in registry.list_named()] == ["a", "b", "c"]
    assert [tool.definition.name for tool in registry.list_named(["c", "a", "c"])] == ["a", "c"]


def test_unknown_name_is_not_found_with_close_names():
    registry = ToolRegistry([named("calculator"), named("clock")])
    with pytest.raises(NotFound, match="did you mean 'calculator'") as raised:
        registry.list_named(["calculater"])
    assert raised.value.code is ErrorCode.TOOL_NOT_FOUND
    assert "registered are 'calculator', 'clock'" in registry.describe_unknown("zzz")
    assert "no tool is registered" in ToolRegistry([]).describe_unknown("x")


@pytest.mark.parametrize(
    ("arguments_json", "argument", "problem"),
    [
        ("{}", "city", "argument 'city' is missing"),
        ('{"city": 1}', "city", "argument 'city': expected type string"),
        ('{"city": "berlin"}', "city", "argument 'city': must match the pattern"),
        ('{"city": "B", "town": 1}', "town", "argument 'town' is not known: the tool takes 'city', 'days'"),
        ('{"city": "B", "days": [1, "x"]}', "days[1]", r"argument 'days\[1\]': expected type"),
        ("", "", "not JSON"),
        ("{", "", "not JSON"),
        ("[]", "", "must be a JSON object, not list"),
        ("null", "", "must be a JSON object, not null"),
        ('{"city": NaN}', "", "NaN is not JSON"),
        ('{"city": "\\ud800"}', "", "not valid Unicode"),
        ('{"city": ' + "[" * 600 + "]" * 600 + "}", "", "nested too deeply"),
    ],
)
def test_bad_arguments_name_the_argument(arguments_json, argument, problem):
    with pytest.raises(InvalidArguments, match=problem) as raised:
        ArgumentChecker("weather", SCHEMA).parse(arguments_json)
    assert raised.value.violations[0].argument == argument


def test_message_does_not_repeat_values():
    with pytest.raises(InvalidArguments) as raised:
        ArgumentChecker("weather", SCHEMA).parse('{"city": "secret-0815"}')
    assert "secret" not in str(raised.value)


def test_every_violation_is_named_up_to_ten():
    arguments = {"city": 1, "days": ["x"] * 20}
    with pytest.raises(InvalidArguments) as raised:
        ArgumentChecker("weather", SCHEMA).parse(json.dumps(arguments))
    assert len(raised.value.violations) == 10


@given(st.text(max_size=30) | st.recursive(st.integers() | st.text(), st.lists, max_leaves=3).map(json.dumps))
def test_any_text_is_an_object_or_refused(text):
    with suppress(InvalidArguments):
        assert isinstance(ArgumentChecker("weather", '{"type": "object"}').parse(text), dict)
