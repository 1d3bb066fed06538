"""The document of the API has every path, and its page shows it without scripts."""

import base64
import hashlib
import json
import re

import pytest
from openapi_spec_validator import validate

from gateway.http.document.assembly import document_of
from gateway.http.document.page import POLICY, page_of
from gateway.http.serving import described_operations
from gateway.http.settings import HttpSettings
from tests.support.http_document import operation_of, problems_of, the_document

OPERATIONS = described_operations(HttpSettings())


def operations():
    return [operation for methods in the_document()["paths"].values() for operation in methods.values()]


def test_the_document_is_one_of_openapi_3_1():
    assert the_document()["openapi"] == "3.1.0"
    validate(the_document())


def test_the_paths_of_the_application_are_those_of_the_document():
    served = {(one.path, method) for one in OPERATIONS for method in one.route.methods - {"HEAD"}}
    described = {(path, method.upper()) for path, methods in the_document()["paths"].items() for method in methods}
    assert served == described
    assert len(served) == len(OPERATIONS) > 40


def test_each_operation_has_a_name_of_its_own_a_summary_and_a_known_tag():
    names = [operation["operationId"] for operation in operations()]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in the_document()["tags"]}
    for operation in operations():
        assert operation["summary"].endswith(".")
        assert set(operation["tags"]) < tags


def test_each_answer_has_a_schema_and_each_parameter_its_place():
    for operation in operations():
        assert all("schema" in media for media in operation["responses"]["200"]["content"].values())
        assert {parameter["in"] for parameter in operation["parameters"]} <= {"path", "query", "header"}


def test_names_of_schemas_are_no_places_in_the_code_and_every_reference_is_defined():
    schemas = the_document()["components"]["schemas"]
    assert not [name for name in schemas if "__" in name]
    places = set(re.findall(r'"\$ref": "#/components/(schemas|responses)/([^"]+)"', json.dumps(the_document())))
    assert places
    assert all(name in the_document()["components"][kind] for kind, name in places)


@pytest.mark.parametrize(("needs_key", "ways"), [(True, 2), (False, 3)])
def test_a_key_is_required_where_the_gateway_asks_for_one(needs_key, ways):
    made = document_of(OPERATIONS, "0", needs_key=needs_key)
    asked = made["paths"]["/v1/executions"]["post"]["security"]
    assert (len(asked), {} in asked) == (ways, not needs_key)
    assert made["paths"]["/docs"]["get"]["security"] == made["paths"]["/healthz"]["get"]["security"] == []


def test_a_created_thing_links_to_the_paths_that_take_its_id():
    links = operation_of("POST", "/v1/executions")["responses"]["200"]["links"]
    assert links["getTimeline"]["parameters"] == {"request_id": "$response.body#/request_id"}


def test_bodies_that_must_name_a_model_are_those_of_openais_api():
    body = operation_of("POST", "/v1/responses")["requestBody"]["content"]["application/json"]["schema"]
    assert problems_of(body, {"input": "hi"})
    assert problems_of(body, {"input": "hi", "model": ""}) == []


def test_the_field_of_ours_is_a_request_of_the_contract():
    body = operation_of("POST", "/v1/messages")["requestBody"]["content"]["application/json"]["schema"]
    asked = {"model": "", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    assert problems_of(body, asked | {"pagantic": {"mode": "MODE_CHAT"}}) == []
    assert problems_of(body, asked | {"pagantic": {"mode": "MODE_NONE"}})


def test_the_page_shows_every_path_and_schema_and_runs_nothing():
    page = page_of(the_document())
    for path in the_document()["paths"]:
        assert f"</strong> {path}</code>" in page
    for name in the_document()["components"]["schemas"]:
        assert f'id="{name}"' in page
    assert not re.search(r"<script|javascript:|\son\w+=|https?://", page)
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))


def test_the_policy_of_the_page_allows_its_style_alone():
    (style,) = re.findall(r"<style>(.*?)</style>", page_of(the_document()), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert POLICY.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")


def test_texts_of_a_document_are_no_markup_of_its_page():
    made = json.loads(json.dumps(the_document()))
    made["info"]["description"] = made["paths"]["/docs"]["get"]["summary"] = "<b>&"
    assert page_of(made).count("&lt;b&gt;&amp;") == 2
