"""Arguments of operations: what headers hold, and how messages name what a model gave."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolFailed
from services.tools.core.openapi.documents import translate
from services.tools.core.openapi.requests import build_request
from tests.unit.tools.test_openapi import TEXT, document, only, reason, with_parameter
from tests.unit.tools.test_openapi_forms import MULTIPART, OBJECT, TEXTS, form


def header_of(value, **parameter):
    operation = only(with_parameter(**{"in": "header", "name": "X-P", **parameter}))
    return build_request(operation, {"X-P": value}, {}).headers["X-P"]


@pytest.mark.parametrize(
    ("parameter", "value", "text"),
    [
        ({}, "a,b=c", "a,b=c"),
        ({}, ["a", "b=c"], "a,b=c"),
        ({}, {"a=b": "c"}, "a=b,c"),
        ({"explode": True}, {"a": "b=c"}, "a=b=c"),
        ({"content": {"application/json": {}}}, ["a,b"], '["a,b"]'),
    ],
)
def test_headers_are_written_in_their_style(parameter, value, text):
    assert header_of(value, **parameter) == text


@pytest.mark.parametrize(
    ("explode", "value", "expected"),
    [
        (False, ["a,b", "c"], "',', which separates"),
        (False, {"a": "1,role,admin"}, "',', which separates"),
        (False, {"a,1,role": "admin"}, "',', which separates"),
        (True, {"a": "1,role=admin"}, "',', which separates"),
        (True, {"a=1,role": "admin"}, "',', which separates"),
        (True, {"a=b": "c"}, "'=', which ends a name"),
        (True, {"a": ["b", "c"]}, "a list or an object inside another"),
    ],
)
def test_items_of_a_header_do_not_make_other_items(explode, value, expected):
    with pytest.raises(ToolFailed, match=re.escape("argument 'X-P' has a ")) as raised:
        header_of(value, explode=explode)
    assert expected in str(raised.value)


PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=8)


@given(st.lists(PRINTABLE, min_size=1) | st.dictionaries(PRINTABLE, PRINTABLE, min_size=1), st.booleans())
def test_a_header_gives_back_its_items_or_is_refused(value, explode):
    try:
        items = header_of(value, explode=explode).split(",")
    except ToolFailed:
        assert any(sign in part for part in value for sign in ",=") or any("," in item for item in value.values())
        return
    if isinstance(value, list):
        assert items == value
    elif explode:
        assert dict(item.split("=", 1) for item in items) == value
    else:
        assert dict(zip(items[::2], items[1::2], strict=True)) == value


def test_what_is_no_name_of_a_header_is_no_argument():
    optional = with_parameter(**{"in": "header", "name": "X P"})
    assert not only(optional).arguments
    assert "'X P', which is no name of a header" in reason(
        with_parameter(**{"in": "header", "name": "X P", "required": True})
    )


def twice(location, style, explode, schema):
    """Return an operation with two parameters `id`, of which the second is the argument `id_LOCATION`."""
    first, path = ("path", "/{id}") if location != "path" else ("query", "/{id}")
    parameters = [
        {"name": "id", "in": first, "schema": TEXT},
        {"name": "id", "in": location, "style": style, "explode": explode, "schema": schema},
        {"name": "limit", "in": "query", "schema": TEXT},
    ]
    return only(document({"parameters": parameters}, path=path, method="get"))


@pytest.mark.parametrize(
    ("location", "style", "value", "expected"),
    [
        ("query", "form", {"limit": 1}, "must not have the name 'limit'"),
        ("query", "form", [["a"]], "has a list or an object"),
        ("query", "deepObject", {"[": "a"}, "has the name '['"),
        ("header", "simple", ["a,b"], "has a value with ','"),
        ("header", "simple", "ä", "goes into a header"),
        ("path", "simple", "", "is empty"),
        ("path", "simple", None, "is empty"),
        ("path", "simple", [["a"]], "has a list or an object"),
    ],
)
def test_messages_name_the_argument_of_a_parameter(location, style, value, expected):
    operation = twice(location, style, True, {})
    with pytest.raises(ToolFailed, match=re.escape(f"argument 'id_{location}' {expected}")):
        build_request(operation, {"id": "a", f"id_{location}": value}, {})


@pytest.mark.parametrize(
    ("found", "value", "expected"),
    [
        (form({"p": OBJECT, "q": TEXT}, {"p": {"style": "form"}}), {"p": {"q": "1"}}, "must not have the name 'q'"),
        (
            form({"p": OBJECT, "p[a]": TEXT}, {"p": {"style": "deepObject"}}),
            {"p": {"a": "1"}},
            "must not have the name 'p[a]'",
        ),
        (form({"p": TEXTS}, {"p": {"style": "spaceDelimited"}}), {"p": ["a b"]}, "has a value with ' '"),
        (form({"p": OBJECT}, {"p": {"style": "form"}}, MULTIPART), {"p": {'"': ""}}, "has the name '\"'"),
        (form({"p": {}}, {"p": {"contentType": "text/csv"}}), {"p": {}}, "has a list or an object"),
    ],
)
def test_messages_name_the_property_of_a_body(found, value, expected):
    with pytest.raises(ToolFailed, match=re.escape(f"argument 'body.p' {expected}")):
        build_request(only(found), {"body": value}, {})


def test_a_parameter_that_the_path_sets_is_no_argument():
    parameters = [{"name": name, "in": "query", "required": True, "schema": TEXT} for name in ("x", "y")]
    found = document({"parameters": parameters}, path="/a?x=1&z", method="get")
    operation = only(found)
    assert list(operation.arguments) == ["y"]
    assert build_request(operation, {"y": "2"}, {}).target == "/a?x=1&z=&y=2"


@pytest.mark.parametrize("path", ["/a/../b", "/./b", "/a/%2E%2e"])
def test_a_path_that_leads_elsewhere_is_left_out(path):
    assert "has a segment '.' or '..'" in reason(document(path=path, method="get"))
    assert translate(document(path=path.replace("..", "...").replace("/./", "/.a/").replace("%2E%2e", "x"))).operations
