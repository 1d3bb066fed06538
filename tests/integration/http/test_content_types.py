"""Content types of requests: JSON, what programs send without a thought, and what is refused."""

import gzip
import json

import pytest

from tests.support.http_app import chat_body

CHAT = "/v1/chat/completions"
BODY = json.dumps(chat_body()).encode()


@pytest.mark.parametrize(
    "kind",
    [
        *(None, "application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"),
        *("text/plain", "application/x-www-form-urlencoded", "application/octet-stream"),
    ],
)
async def test_json_is_read_whatever_type_says_so_or_says_nothing(served, kind):
    headers = {} if kind is None else {"content-type": kind}
    async with served() as server:
        response = await server.http.post(CHAT, content=BODY, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat", "/v1/executions", "/v1/embeddings"])
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/xml", "image/png"])
async def test_another_type_is_415(served, path, kind):
    async with served() as server:
        response = await server.http.post(path, content=b"x", headers={"content-type": kind})
    assert response.status_code == 415
    assert "send application/json" in response.text


async def test_an_encoded_body_is_415(served):
    async with served() as server:
        body = gzip.compress(BODY)
        response = await server.http.post(CHAT, content=body, headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert "send the body as it is" in response.json()["error"]["message"]


async def test_a_file_may_have_any_type(served):
    async with served() as server:
        response = await server.http.post(
            "/v1/collections/notes/files?source=a.md", content=b"x", headers={"content-type": "text/markdown"}
        )
    assert response.status_code != 415
