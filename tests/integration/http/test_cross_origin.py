"""Web pages of listed origins: browsers let them send requests and read each response, and pages of others nothing."""

import re

import pytest

from gateway.http.operations import Access
from gateway.http.serving import described_operations
from gateway.http.settings import HttpSettings
from tests.support.http_app import chat_body

PAGE = "https://page.example"
LISTED = {"allowed_origins": (PAGE,)}
WANTED = "authorization, content-type, x-stainless-os"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": WANTED}
CHAT = "/v1/chat/completions"


def cors_of(response):
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


async def test_each_operation_answers_the_preflight_of_a_listed_page(served):
    operations = [one for one in described_operations(HttpSettings()) if one.access is not Access.PROBE]
    async with served(**LISTED) as server:
        for operation in operations:
            path = re.sub(r"\{[^}]*\}", "x", operation.path)
            asks = {**ASKS, "access-control-request-method": operation.method}
            response = await server.http.options(path, headers={"origin": PAGE, **asks})
            assert (response.status_code, response.content) == (204, b""), operation.endpoint
            told = cors_of(response)
            assert told["access-control-allow-origin"] == PAGE
            assert operation.method in told["access-control-allow-methods"].split(", ")
            assert told["access-control-allow-headers"] == WANTED
            assert "access-control-allow-credentials" not in told
            assert "origin" in response.headers["vary"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHAT, chat_body(), 200),
        ("POST", CHAT, chat_body(stream=True), 200),
        ("POST", CHAT, {}, 400),
        ("GET", "/v1/models", None, 200),
        ("GET", "/nowhere", None, 404),
        ("PUT", CHAT, {}, 405),
        ("OPTIONS", CHAT, None, 405),
    ],
)
async def test_a_listed_page_may_read_each_response(served, method, path, body, status):
    async with served(**LISTED) as server:
        response = await server.http.request(method, path, json=body, headers={"origin": PAGE})
    assert response.status_code == status
    assert response.headers["access-control-allow-origin"] == PAGE
    exposed = response.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "x-should-retry", "retry-after"} <= set(exposed)
    assert "origin" in response.headers["vary"].lower()


async def test_refusals_at_the_door_can_be_read_by_a_listed_page(served):
    async with served(auth="keys", max_body_bytes=1024, **LISTED) as server:
        origin = {"origin": PAGE}
        preflight = await server.http.options(CHAT, headers={**origin, **ASKS})
        keyless = await server.http.post(CHAT, json=chat_body(), headers=origin)
        large = await server.http.post(
            CHAT, json=chat_body("x" * 2000), headers={**origin, "authorization": "Bearer key"}
        )
    assert (preflight.status_code, keyless.status_code, large.status_code) == (204, 401, 413)
    assert all(cors_of(response)["access-control-allow-origin"] == PAGE for response in (keyless, large))


@pytest.mark.parametrize(
    ("headers", "status", "listed"),
    [
        ({"origin": "https://evil.example"}, 403, LISTED),
        ({"origin": "null"}, 403, LISTED),
        ({"origin": PAGE}, 403, {}),
        ({"origin": PAGE, "host": "evil.example"}, 421, LISTED),
        ({"origin": "http://localhost:1"}, 403, LISTED),
    ],
)
async def test_other_pages_and_other_hosts_get_no_permission(served, headers, status, listed):
    async with served(**listed) as server:
        preflight = await server.http.options(CHAT, headers={**headers, **ASKS})
        response = await server.chat(headers=headers)
    assert (preflight.status_code, response.status_code) == (status, status)
    assert (cors_of(preflight), cors_of(response)) == ({}, {})


async def test_a_page_of_this_server_may_call_and_needs_no_permission(served):
    async with served(**LISTED) as server:
        origin = {"origin": str(server.http.base_url).rstrip("/")}
        preflight = await server.http.options(CHAT, headers={**origin, **ASKS})
        response = await server.chat(headers=origin)
    assert (preflight.status_code, response.status_code) == (405, 200)
    assert (cors_of(preflight), cors_of(response)) == ({}, {})


@pytest.mark.parametrize("wanted", ["x" * 5000, "a b", "a,,b", "ä"])
async def test_headers_that_are_no_names_are_not_permitted(served, wanted):
    async with served(**LISTED) as server:
        asks = {"origin": PAGE, "access-control-request-method": "POST"}
        headers = [*asks.items(), ("access-control-request-headers", wanted.encode())]
        response = await server.http.options(CHAT, headers=headers)
    assert (response.status_code, "access-control-allow-headers" in response.headers) == (204, False)


async def test_a_page_may_call_a_private_network_if_its_browser_asks(served):
    async with served(**LISTED) as server:
        asks = {"origin": PAGE, **ASKS, "access-control-request-private-network": "true"}
        response = await server.http.options(CHAT, headers=asks)
    assert response.headers["access-control-allow-private-network"] == "true"
