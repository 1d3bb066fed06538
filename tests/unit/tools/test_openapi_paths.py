"""Parameters of paths in the styles of the standard's table of examples (OpenAPI 3.1.1, 4.8.12.4)."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolFailed
from services.tools.core.openapi.requests import build_request
from tests.unit.tools.test_openapi import document, only

LIST = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}


def target_of(style, explode, value, path="/x{color}/y"):
    parameter = {"name": "color", "in": "path", "required": True, "style": style, "explode": explode}
    found = document({"parameters": [parameter]}, path=path, method="get")
    return build_request(only(found), {"color": value}, {}).target


@pytest.mark.parametrize(
    ("style", "explode", "texts"),
    [
        ("matrix", False, [";color", ";color=blue", ";color=blue,black,brown", ";color=R,100,G,200,B,150"]),
        ("matrix", True, [";color", ";color=blue", ";color=blue;color=black;color=brown", ";R=100;G=200;B=150"]),
        ("label", False, [".", ".blue", ".blue,black,brown", ".R,100,G,200,B,150"]),
        ("label", True, [".", ".blue", ".blue.black.brown", ".R=100.G=200.B=150"]),
        ("simple", False, [None, "blue", "blue,black,brown", "R,100,G,200,B,150"]),
        ("simple", True, [None, "blue", "blue,black,brown", "R=100,G=200,B=150"]),
    ],
)
def test_paths_have_their_parameters_as_the_table_of_the_standard_has_them(style, explode, texts):
    for value, text in zip(["", "blue", LIST, OBJECT], texts, strict=True):
        if text is not None:
            assert target_of(style, explode, value) == f"/x{text}/y"


@pytest.mark.parametrize("style", ["simple", "matrix", "label"])
@pytest.mark.parametrize("explode", [False, True])
@pytest.mark.parametrize("value", [[], {}])
def test_an_empty_list_or_object_is_no_part_of_a_path(style, explode, value):
    with pytest.raises(ToolFailed, match="'color' is empty"):
        target_of(style, explode, value)


@pytest.mark.parametrize("value", ["", "."])
def test_a_label_makes_no_segment_that_leads_elsewhere(value):
    with pytest.raises(ToolFailed, match=r"a segment '\.' or '\.\.'"):
        target_of("label", False, value, "/{color}/y")


def test_an_object_of_a_matrix_does_not_write_the_name_of_another_parameter():
    parameters = [
        {"name": name, "in": "path", "required": True, "style": "matrix", "explode": True} for name in ("a", "b")
    ]
    operation = only(document({"parameters": parameters}, path="/x{a}{b}", method="get"))
    assert build_request(operation, {"a": {"c": 1}, "b": 2}, {}).target == "/x;c=1;b=2"
    with pytest.raises(ToolFailed, match="'b', which is taken"):
        build_request(operation, {"a": {"b": 1}, "b": 2}, {})


@pytest.mark.parametrize("path", ["/{x};role=user", "/{x};r%6Fle", "/a;role/{x}", "/{x};role={y}"])
def test_an_object_of_a_matrix_does_not_repeat_a_name_of_the_path(path):
    names = ("x", "y") if "{y}" in path else ("x",)
    parameters = [
        {"name": name, "in": "path", "required": True, "style": "matrix" if name == "x" else "simple", "explode": True}
        for name in names
    ]
    operation = only(document({"parameters": parameters}, path=path, method="get"))
    filled = build_request(operation, {"x": {"rol": "admin"}, "y": "user"}, {}).target
    assert filled == path.replace("{x}", ";rol=admin").replace("{y}", "user")
    with pytest.raises(ToolFailed, match="argument 'x' must not have the name 'role', which is taken"):
        build_request(operation, {"x": {"role": "admin"}, "y": "user"}, {})


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
LISTS = st.lists(WORDS, min_size=1, max_size=5)
OBJECTS = st.dictionaries(WORDS, WORDS, min_size=1, max_size=5)
KINDS = st.tuples(st.sampled_from(["matrix", "label"]), st.booleans())


def texts_in(style, explode, value):
    """Return the texts that stand in the path for a value, still encoded; of a matrix, those after the sign."""
    text = target_of(style, explode, value).removeprefix("/x").removesuffix("/y")
    if style == "label":
        return text.removeprefix(".").split("." if explode else ",")
    if explode:
        return text.removeprefix(";").split(";")
    return text.removeprefix(";color").removeprefix("=").split(",")


def decoded(text):
    return unquote(text, errors="strict")


@given(KINDS, LISTS)
def test_a_list_in_a_path_gives_back_its_items(kind, value):
    texts = texts_in(*kind, value)
    if kind == ("matrix", True):
        assert {text.partition("=")[0] for text in texts} == {"color"}
        texts = [text.partition("=")[2] for text in texts]
    assert [decoded(text) for text in texts] == value


@given(KINDS, OBJECTS)
def test_an_object_in_a_path_gives_back_its_values(kind, value):
    texts = texts_in(*kind, value)
    pairs = zip(texts[::2], texts[1::2], strict=True)
    if kind[1]:
        pairs = [(name, item) for name, _, item in (text.partition("=") for text in texts)]
    assert {decoded(name): decoded(item) for name, item in pairs} == value
