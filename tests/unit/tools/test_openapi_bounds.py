"""The bounds of reading an OpenAPI document: references let a small one describe any number of parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tools.core.openapi.documents import translate
from services.tools.core.openapi.references import MAX_OPERATION_PARTS, References, TooManyParts
from services.tools.core.openapi.shapes import declares_nested_values, shapes_of
from tests.unit.tools.test_openapi import TEXT, document, only, reason
from tests.unit.tools.test_openapi_forms import MULTIPART, URLENCODED, form

WIDE = {"anyOf": [TEXT] * 200}
MANY_WIDE = {"properties": {f"p{number}": {"$ref": "#/components/schemas/Wide"} for number in range(1000)}}
REPEATED = {"$ref": "#/components/schemas/ManyWide"}


def repeating(kind, count):
    """Return a document with a form of properties that all refer to one large schema."""
    names = [f"f{number}" for number in range(count)]
    found = form(dict.fromkeys(names, REPEATED), {name: {"style": "deepObject"} for name in names}, kind)
    found["components"]["schemas"] = {"Wide": WIDE, "ManyWide": MANY_WIDE}
    return found


@pytest.mark.parametrize("kind", [URLENCODED, MULTIPART])
def test_a_form_whose_schemas_repeat_others_is_given_up(kind):
    assert f"more than {MAX_OPERATION_PARTS} parts" in reason(repeating(kind, 2))


def test_operations_after_the_bound_of_a_document_are_left_out_with_the_next_step():
    schema = {"properties": dict.fromkeys("abcdefgh", TEXT)}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}}}}
    paths = {f"/{number}": {"post": {"operationId": f"run{number}", "requestBody": body}} for number in range(40)}
    found = {**document(schemas={"S": schema}), "paths": paths}
    assert len(translate(found).operations) == 40
    bounded = translate(found, max_parts=400)
    assert 1 < len(bounded.operations) < 40
    reasons = {left_out.reason for left_out in bounded.left_out}
    assert reasons == {
        "the operations before it take up the 400 parts that are read of a document: select fewer in 'operations'"
    }
    assert len(translate(found, max_parts=400, patterns=["run39"]).operations) == 1


@pytest.mark.parametrize(
    "operation",
    [
        {"parameters": [{"name": f"c{number}", "in": "cookie"} for number in range(100)]},
        {"parameters": [{"name": "p", "in": "query", "schema": {"enum": ["x" * 4000]}}]},
        {
            "requestBody": {
                "content": {URLENCODED: {"schema": {"required": [f"n{number}" for number in range(100)]}}},
            },
        },
    ],
)
def test_what_operations_share_counts_for_each_of_them(operation):
    shared = {"components": {"shared": {"post": operation}}}
    paths = {f"/{number}": {"$ref": "#/components/shared"} for number in range(40)}
    translation = translate({**document(), **shared, "paths": paths}, max_parts=500)
    assert 1 <= len(translation.operations) < 10
    assert len(translation.operations) + len(translation.left_out) == 40


def test_long_texts_are_read_in_part():
    found = document({"operationId": "x" * 300, "summary": f"a{' ' * 10_000}b", "description": "c"}, path="/a")
    operation = only(found)
    assert (operation.name, operation.description) == ("post_a", "a\nc")
    long = f"#/components/schemas/{'x' * 2000}"
    body = {"content": {"application/json": {"schema": {"$ref": long}}}}
    assert "references have at most 1024 characters" in reason(document({"requestBody": body}))


SCHEMAS = st.recursive(
    st.sampled_from([TEXT, {}, None, {"$ref": "#/a"}, {"$ref": "#/b"}]),
    lambda inner: (
        st.builds(lambda values: {"anyOf": values}, st.lists(inner, max_size=5))
        | st.builds(lambda values: {"properties": values}, st.dictionaries(st.sampled_from("abc"), inner))
    ),
)


@given(SCHEMAS, SCHEMAS, SCHEMAS, st.integers(0, 60))
def test_no_schema_has_more_shapes_than_are_counted(schema, first, second, max_parts):
    references = References({"a": first, "b": second}, max_parts)
    seen = []
    try:
        seen += shapes_of(schema, references)
        declares_nested_values(seen, references)
    except TooManyParts:
        with pytest.raises(TooManyParts):
            references.budget.start_operation()
    assert len(seen) <= max_parts
