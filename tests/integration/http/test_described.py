"""The document, its page, and the answers to what cannot be changed, over HTTP."""

import pytest

from gateway.http.document.page import POLICY
from tests.support.http_document import the_document


async def test_the_document_and_its_page_are_served_without_a_key(served):
    async with served(auth="keys") as server:
        document = await server.http.get("/openapi.json")
        page = await server.http.get("/docs")
        refused = await server.http.get("/v1/models")
    assert document.json()["paths"].keys() == the_document()["paths"].keys()
    assert {} not in document.json()["paths"]["/v1/models"]["get"]["security"]
    assert (page.status_code, page.headers["content-security-policy"]) == (200, POLICY)
    assert refused.status_code == 401


async def test_the_document_is_not_shown_to_pages_of_other_origins(served):
    async with served() as server:
        refused = await server.http.get("/openapi.json", headers={"origin": "http://evil.example"})
    assert refused.status_code == 403


async def test_an_answer_that_is_not_as_the_document_says_fails_a_test(served, monkeypatch):
    answers = the_document()["paths"]["/v1/models"]["get"]["responses"]
    async with served() as server:
        monkeypatch.delitem(answers, "200")
        with pytest.raises(AssertionError, match="not in the document"):
            await server.http.get("/v1/models")


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}])
async def test_a_model_is_not_deleted_by_a_request(served, headers):
    async with served() as server:
        refused = await server.http.delete("/v1/models/scripted", headers=headers)
        unknown = await server.http.delete("/v1/models/nobody", headers=headers)
        kept = await server.http.get("/v1/models/scripted")
    assert (refused.status_code, unknown.status_code, kept.status_code) == (403, 404, 200)
    assert refused.json()["error"]["type"] == "permission_error"
    assert "MODEL_PATH" in refused.json()["error"]["message"]
