"""Optional fields that are absent, null or empty mean the same, in every form of every operation."""

import pytest

from gateway.mcp.mapping.own_tools import NAMES, read_own_call
from pagantic_common.domain.errors import InvalidRequest
from tests.support.http_effects import ABSENT, OPERATIONS, bodies, changed_at, effect_of, path_of, places_in

NOTHING = (None, "", [], {})
ANY_VALUE = "The schema {} permits any value, as JSON Schema has it."
EMPTY_TEXT = "A text part without a text is wrong, and a part with an empty text is not."
NAMES_WHAT_IS_MISSING = "The function is required beside the type; the error of {} names the field that {} lacks."
# The fields whose specification gives an empty value a meaning of its own, or requires the field beside another one.
EXCEPTIONS = {
    ("ContentPart", "text"): EMPTY_TEXT,
    ("ContentPart", "refusal"): EMPTY_TEXT,
    ("TextBlock", "text"): EMPTY_TEXT,
    ("BlockForm", "text"): EMPTY_TEXT,
    ("BlockForm", "thinking"): EMPTY_TEXT,
    ("InputPart", "text"): EMPTY_TEXT,
    ("InputPart", "refusal"): EMPTY_TEXT,
    ("InputPart", "data"): "The JSON of a part may be an empty object or list.",
    ("ModerationPart", "text"): EMPTY_TEXT,
    ("JsonSchemaForm", "schema"): ANY_VALUE,
    ("TextFormat", "schema"): ANY_VALUE,
    ("OllamaForm", "format"): ANY_VALUE,
    ("ResponseForm", "input"): "An empty text is what the user said, which the orchestrator refuses with its place.",
    ("ToolForm", "function"): NAMES_WHAT_IS_MISSING,
    ("ToolChoiceForm", "function"): NAMES_WHAT_IS_MISSING,
}


def optional_fields():
    """Yield the optional fields of all forms in all bodies: path, body, keys of the object, form, and field's key."""
    for path, body in bodies():
        for keys, form in places_in(path, body):
            for name, field in type(form).model_fields.items():
                is_required = field.is_required() or (not keys and name in OPERATIONS[path].required)
                if not is_required:
                    yield path, body, keys, form, field.alias or name


def row_of(form, key):
    """Return the row of EXCEPTIONS for a field, if there is one."""
    return next((row for kind in type(form).__mro__ if (row := (kind.__name__, key)) in EXCEPTIONS), None)


async def differences():
    """Yield the row of each field for which an empty value differs from its absence, or else its place and value."""
    for path, body, keys, form, key in optional_fields():
        absent = await effect_of(path, changed_at(body, keys, key, ABSENT))
        for nothing in NOTHING:
            if await effect_of(path, changed_at(body, keys, key, nothing)) != absent:
                yield row_of(form, key) or (path, path_of(keys, key), repr(nothing))


async def test_absent_null_and_empty_fields_have_one_effect_but_for_the_exceptions():
    assert {row async for row in differences()} == EXCEPTIONS.keys()


REQUIRED = {
    "ask": {"question": "hi"},
    "extract": {"text": "hi", "schema": {}},
    "vote": {"question": "hi", "schema": {}},
    "plan": {"task": "hi"},
}
# `tools` of `ask` is documented as: without it every tool, and none for [].
MCP_EXCEPTIONS = {("ask", "tools", "[]")}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_arguments_of_own_tools_are_absent_if_they_are_null_or_empty(name):
    fields = {"system", "collection", "model", "max_tokens", "temperature", "timeout_s"}
    fields |= {"ask": {"session_id", "tools"}, "extract": {"tools"}, "plan": {"steps", "tools"}}.get(name, {"n"})
    fields |= {"vote": {"strategy", "min_agreement"}}.get(name, set())
    absent = read_own_call(name, REQUIRED[name], "r")
    differing = set()
    for field in fields:
        for nothing in NOTHING:
            try:
                made = read_own_call(name, REQUIRED[name] | {field: nothing}, "r")
            except (InvalidRequest, TypeError, ValueError):
                made = None
            if made != absent:
                differing.add((name, field, repr(nothing)))
    assert {row for row in differing if row[:2] != ("ask", "tools") or row[2] == "[]"} == {
        row for row in MCP_EXCEPTIONS if row[0] == name
    }
