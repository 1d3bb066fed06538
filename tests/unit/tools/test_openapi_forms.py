"""Bodies that are forms: which of them can be sent, and what arrives."""

import asyncio
import email
import email.policy
import json
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.grammar.arguments import ArgumentChecker, InvalidArguments
from services.tools.adapters.openapi.configuration import ApiSpec
from services.tools.adapters.openapi.operation_tool import OperationTool
from services.tools.core.allowlists import HostAllowlist
from services.tools.core.openapi.documents import translate
from services.tools.core.openapi.requests import build_request
from tests.unit.tools.test_openapi import TEXT, document, only, reason

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
TEXTS = {"type": "array", "items": TEXT}
OBJECT = {"type": "object", "additionalProperties": TEXT}
DEEP = {"type": "object", "properties": {"inner": OBJECT}}
BOTH = {"p": {"style": "form"}, "q": {"style": "form"}}
FILE = {"type": "string", "format": "binary"}


def form(properties, encoding=None, kind=URLENCODED, version="3.1.0", required=(), **more):
    entry = {"schema": {"type": "object", "properties": properties, "required": list(required), **more}}
    if encoding is not None:
        entry["encoding"] = encoding
    return document({"requestBody": {"required": True, "content": {kind: entry}}}, version=version)


def sent(found, **values):
    """Return the pairs of an encoded form as the standard library reads them."""
    content = build_request(only(found), {"body": values}, {}).content
    assert content.media_type == URLENCODED
    return parse_qsl(content.text, keep_blank_values=True, strict_parsing=bool(content.text), errors="strict")


def parts_of(found, **values):
    """Return name, file name, type and bytes of the parts of a request, as the standard library reads them."""
    requests = []

    def answer(request):
        requests.append(request)
        return httpx2.Response(204)

    async def run():
        spec = ApiSpec("api", Path(), "http://127.0.0.1:1", HostAllowlist(), {}, {}, ("*",), None)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            await OperationTool(spec, only(found), client).run({"body": values}, None)

    asyncio.run(run())
    (request,) = requests
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + request.content, policy=email.policy.HTTP)
    assert message.get_content_type() == MULTIPART
    return [
        (
            part.get_param("name", header="content-disposition"),
            part.get_filename(),
            part["content-type"],
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    ]


@pytest.mark.parametrize(
    ("schema", "encoding", "value", "pairs"),
    [
        (TEXT, None, "a b&c=d+é", [("p", "a b&c=d+é")]),
        ({"type": "boolean"}, None, True, [("p", "true")]),
        ({"type": ["number", "null"]}, None, None, []),
        (TEXTS, None, ["a,b", "c"], [("p", "a,b"), ("p", "c")]),
        (OBJECT, None, {"a": "1"}, [("p", '{"a":"1"}')]),
        ({"type": "array", "items": OBJECT}, None, [{"a": "1"}], [("p", '{"a":"1"}')]),
        (TEXT, {"contentType": "application/json"}, "a", [("p", '"a"')]),
        (TEXT, {"contentType": "text/csv"}, "a", [("p", "a")]),
        (TEXTS, {"style": "form"}, ["a", "b"], [("p", "a"), ("p", "b")]),
        (TEXTS, {"explode": False}, ["a", "b"], [("p", "a,b")]),
        (TEXTS, {"style": "spaceDelimited"}, ["a", "b"], [("p", "a b")]),
        (TEXTS, {"style": "pipeDelimited"}, ["a", "b"], [("p", "a|b")]),
        (OBJECT, {"style": "form"}, {"a": "1", "b": "2"}, [("a", "1"), ("b", "2")]),
        (OBJECT, {"style": "form", "explode": False}, {"a": "1"}, [("p", "a,1")]),
        (OBJECT, {"style": "deepObject"}, {"a": "1", "b": "2"}, [("p[a]", "1"), ("p[b]", "2")]),
        (OBJECT, {"allowReserved": True}, {"a": "&b=1"}, [("a", "&b=1")]),
    ],
)
def test_properties_of_encoded_forms_are_written_by_their_encoding(schema, encoding, value, pairs):
    assert sent(form({"p": schema}, {"p": encoding} if encoding else None), p=value) == pairs


@pytest.mark.parametrize(
    ("schema", "encoding", "value", "parts"),
    [
        (TEXT, None, "grün", [("p", None, None, "grün".encode())]),
        (TEXTS, None, ["a", "b"], [("p", None, None, b"a"), ("p", None, None, b"b")]),
        (OBJECT, None, {"a": "1"}, [("p", None, "application/json", b'{"a":"1"}')]),
        ({"type": "array", "items": OBJECT}, None, [{}], [("p", None, "application/json", b"{}")]),
        (TEXT, {"contentType": "application/sdp"}, "v=0", [("p", None, "application/sdp", b"v=0")]),
        (FILE, None, "x", [("p", "p", "application/octet-stream", b"x")]),
        (FILE, {"contentType": "image/*, text/csv, text/plain"}, "x", [("p", "p", "text/csv", b"x")]),
        (FILE, {"contentType": "text/csv\r\nX-Evil: 1"}, "x", [("p", "p", "application/octet-stream", b"x")]),
        (FILE, {"contentType": "application/json"}, "[1]", [("p", "p", "application/json", b"[1]")]),
        ({"type": "string", "contentMediaType": "text/csv"}, None, "x", [("p", "p", "text/csv", b"x")]),
        ({"type": "array", "items": FILE}, None, ["x"], [("p", "p", "application/octet-stream", b"x")]),
        (OBJECT, {"style": "deepObject"}, {"ä b": "%41"}, [("p[ä b]", None, None, b"%41")]),
        (OBJECT, {"style": "form"}, {"a": "1"}, [("a", None, None, b"1")]),
    ],
)
def test_properties_of_multipart_forms_become_parts(schema, encoding, value, parts):
    assert parts_of(
        form({"p": schema, "q": TEXT}, {"p": encoding} if encoding else None, MULTIPART), p=value, q=""
    ) == [
        *parts,
        ("q", None, None, b""),
    ]


def test_version_3_0_has_no_styles_in_multipart_forms():
    found = form({"p": OBJECT}, {"p": {"style": "deepObject"}}, MULTIPART, "3.0.3")
    assert parts_of(found, p={"a": "1"}) == [("p", None, "application/json", b'{"a":"1"}')]


def test_a_multipart_form_without_parts_is_sent_without_a_body():
    assert build_request(only(form({"p": TEXT}, kind=MULTIPART)), {"body": {}}, {}).content is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            form({"p": DEEP}, {"p": {"style": "deepObject"}}, required=["p"]),
            "'deepObject' cannot write a list or an object",
        ),
        (form({"p": TEXTS}, {"p": {"style": "deepObject"}}, required=["p"]), "'deepObject' is not defined for lists"),
        (
            form({"p": {"anyOf": [TEXT, {"$ref": "#/x"}]}}, {"p": {"explode": True}}, required=["p"]),
            "'#/x', which the document does not have",
        ),
        (form({"p": TEXT}, {"p": {"style": "matrix"}}, required=["p"]), "has style 'matrix'"),
        (form({"p": OBJECT}, {"p": {"contentType": "text/xml"}}, required=["p"]), "only JSON is written"),
        (form({"p": TEXTS}, {"p": {"explode": False}}, MULTIPART, required=["p"]), "is not supported in multipart"),
        (form({"p": DEEP}, {"p": {"style": "deepObject"}}), "no property that can be sent"),
        (form({}), "no property that can be sent"),
        (form({"p": TEXT}, allOf=[{}]), "its form has 'allOf'"),
        (form({"p": TEXT}, patternProperties={}), "its form has 'patternProperties'"),
        (form({"p": TEXT}, type="array"), "has type 'array', and only objects"),
        (form([]), "'properties' or 'required' of another type"),
    ],
)
def test_a_form_that_cannot_be_sent_leaves_its_operation_out(found, expected):
    assert expected in reason(found)


def test_optional_properties_that_cannot_be_written_are_no_arguments():
    operation = only(form({"p": DEEP, "q": TEXT}, {"p": {"style": "deepObject"}}))
    assert operation.left_out == {"p": "style 'deepObject' cannot write a list or an object inside another"}
    with pytest.raises(InvalidArguments):
        ArgumentChecker("run", operation.parameters_json).parse('{"body": {"p": {}}}')


def test_a_form_takes_the_properties_that_it_declares_alone():
    found = form({"p": TEXT, "id": {"type": "string", "readOnly": True}}, required=["id", "named"])
    body = json.loads(only(found).parameters_json)["properties"]["body"]
    assert body == {
        "type": "object",
        "properties": {"p": TEXT, "named": {}},
        "required": ["named"],
        "additionalProperties": False,
    }


def test_json_is_preferred_to_forms_and_encoded_forms_to_multipart():
    entry = {"schema": {"properties": {"p": TEXT}}}
    kinds = {MULTIPART: entry, f"{URLENCODED}; charset=utf-8": entry, "application/json": entry}
    for expected in ("application/json", URLENCODED, MULTIPART):
        assert only(document({"requestBody": {"content": kinds}})).body.kind == expected
        kinds.popitem()


def test_an_optional_form_that_cannot_be_sent_leaves_a_delete_without_a_body():
    entry = {"schema": {"type": "object", "properties": {}, "additionalProperties": False}}
    parameters = [{"name": "body", "in": "query", "schema": TEXT}]
    for kind in (URLENCODED, "text/plain"):
        found = document({"requestBody": {"content": {kind: entry}}, "parameters": parameters}, method="delete")
        request = build_request(only(found), {"body": "x"}, {})
        assert (request.target, request.content) == ("/things?body=x", None)


@pytest.mark.parametrize(
    ("found", "values", "expected"),
    [
        (form({"p": {}}, {"p": {"style": "deepObject"}}), {"p": {"a": {"b": 1}}}, "a list or an object inside another"),
        (form({"p": TEXTS}, {"p": {"style": "spaceDelimited"}}), {"p": ["a b"]}, "a value with ' ', which separates"),
        (
            form({"p": OBJECT}, {"p": {"style": "pipeDelimited"}}),
            {"p": {"a|": ""}},
            "a value with '|', which separates",
        ),
        (form({"p": {}}, {"p": {"contentType": "text/csv"}}), {"p": {}}, "which text/csv cannot write"),
        (form({"p": OBJECT, "q": TEXT}, {"p": {"style": "form"}}), {"p": {"q": "1"}}, "'q', which is taken"),
        (form({"p": OBJECT, "q": OBJECT}, BOTH), {"p": {"a": "1"}, "q": {"a": "2"}}, "'a', which is taken"),
        (form({"p": OBJECT, "q": OBJECT}, BOTH, MULTIPART), {"p": {"a": "1"}, "q": {"a": "2"}}, "'a', which is taken"),
        (form({"p": OBJECT}, {"p": {"style": "deepObject"}}), {"p": {"a]": "1"}}, "without square brackets"),
        (form({"p": OBJECT}, {"p": {"style": "deepObject"}}), {"p": {"[b": "1"}}, "without square brackets"),
        (form({"p": OBJECT}, {"p": {"style": "deepObject"}}), {"p": {"": "1"}}, "without square brackets"),
        (form({"p": OBJECT}, {"p": {"style": "form"}}, MULTIPART), {"p": {'a"; b="': "1"}}, "must be printable"),
        (form({"p": OBJECT}, {"p": {"style": "form"}}, MULTIPART), {"p": {"a\r\nb": "1"}}, "must be printable"),
        (form({"p": OBJECT, "q": TEXT}, {"p": {"style": "form"}}, MULTIPART), {"p": {"q": ""}}, "is taken"),
    ],
)
def test_values_that_would_make_another_form_are_refused(found, values, expected):
    with pytest.raises(ToolFailed, match=re.escape(expected)):
        build_request(only(found), {"body": values}, {})


WORDS = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="[]"), min_size=1)
PART_KEYS = KEYS.filter(lambda key: key.isprintable() and '"' not in key and "\\" not in key)
NESTED = st.recursive(WORDS | st.integers() | st.booleans(), lambda inner: st.dictionaries(WORDS, inner))


def form_of_all(kind):
    properties = {
        "text": TEXT,
        "list": TEXTS,
        "json": {"type": "object"},
        "deep": OBJECT,
        "joined": TEXTS,
        "file": FILE,
    }
    encoding = {"deep": {"style": "deepObject"}}
    if kind == URLENCODED:
        encoding["joined"] = {"style": "form", "explode": False}
    return form(properties, encoding, kind)


@given(
    WORDS, st.lists(WORDS), st.dictionaries(WORDS, NESTED), st.dictionaries(KEYS, WORDS), st.lists(WORDS, min_size=1)
)
def test_an_encoded_form_gives_back_what_was_written(text, words, nested, deep, joined):
    values = {"text": text, "list": words, "json": nested, "deep": deep, "joined": joined}
    content = build_request(only(form_of_all(URLENCODED)), {"body": values}, {}).content
    *pairs, (name, _) = parse_qsl(content.text, keep_blank_values=True, strict_parsing=True, errors="strict")
    assert pairs[: len(words) + 1] == [("text", text), *(("list", word) for word in words)]
    assert json.loads(dict(pairs)["json"]) == nested
    assert pairs[len(words) + 2 :] == [(f"deep[{key}]", word) for key, word in deep.items()]
    written = content.text.rpartition("&joined=")[2]
    assert name == "joined"
    assert [unquote(part, errors="strict") for part in written.split(",")] == joined


@given(WORDS, st.lists(WORDS), st.dictionaries(WORDS, NESTED), st.dictionaries(PART_KEYS, WORDS), WORDS)
def test_a_multipart_form_gives_back_what_was_written(text, words, nested, deep, file):
    found = form_of_all(MULTIPART)
    parts = parts_of(found, text=text, list=words, json=nested, deep=deep, file=file)
    names = [name for name, *_ in parts]
    assert names == ["text", *("list" for _ in words), "json", *(f"deep[{key}]" for key in deep), "file"]
    contents = [content.decode() for *_, content in parts]
    assert contents[: len(words) + 1] == [text, *words]
    assert json.loads(contents[len(words) + 1]) == nested
    assert contents[len(words) + 2 :] == [*deep.values(), file]
    assert {name: filename for name, filename, *_ in parts if filename} == {"file": "file"}


SCHEMAS = st.recursive(
    st.sampled_from([TEXT, FILE, {}, True, None, {"type": ["array"]}, {"$ref": "#/paths"}]),
    lambda inner: (
        st.builds(lambda key, value: {key: value}, st.sampled_from(["items", "additionalProperties"]), inner)
        | st.builds(lambda key, value: {key: [value]}, st.sampled_from(["anyOf", "prefixItems", "allOf"]), inner)
        | st.builds(lambda value: {"properties": {"a": value}}, inner)
    ),
    max_leaves=6,
)
ENCODINGS = st.dictionaries(
    st.sampled_from(["style", "explode", "contentType", "allowReserved"]),
    st.sampled_from(["form", "deepObject", "text/csv", "*/*", True, False, None, {}]),
)


@given(SCHEMAS, ENCODINGS, st.sampled_from([URLENCODED, MULTIPART]), st.sampled_from(["3.0.3", "3.1.0"]), st.booleans())
def test_no_form_raises_an_error(schema, encoding, kind, version, is_required):
    found = form({"p": schema, "q": TEXT}, {"p": encoding}, kind, version, ["p"] if is_required else [])
    translation = translate(found)
    for operation in translation.operations:
        assert build_request(operation, {"body": {"q": "x"}}, {}).content is not None
    assert all(left_out.reason for left_out in translation.left_out)
