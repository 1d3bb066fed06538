"""Random requests to the real model: a stream has the text, usage and reason of the whole answer, in every API."""

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx
import pytest

from tests.support.examples import IS_WHOLE
from tests.support.gateway_process import serving_gateway
from tests.support.whole_and_stream import PATHS, WITH_TOOLS, body_of, said_of

REQUESTS = int(os.environ.get("PAGANTIC_WHOLE_REQUESTS", "500" if IS_WHOLE else "24"))
CLIENTS = 2
DIGITS = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}}},
    "required": ["items"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "abcdef"'
TEXTS = ("Say hello.", "List the digits from 1 to 9.", "What is 12*12?", "Tell a story about a lamp.")
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": PARAMETERS}
TOOLS = {
    "/v1/chat/completions": [{"type": "function", "function": FUNCTION}],
    "/api/chat": [{"type": "function", "function": FUNCTION}],
    "/v1/responses": [{"type": "function", **FUNCTION}],
    "/v1/messages": [{"name": "weather", "description": "Tells the weather.", "input_schema": PARAMETERS}],
}
REQUIRED = {
    "/v1/chat/completions": {"tool_choice": "required"},
    "/v1/responses": {"tool_choice": "required"},
    "/v1/messages": {"tool_choice": {"type": "any"}},
}


@pytest.fixture(scope="module")
def gateway(system):
    with serving_gateway(system.environment) as url:
        yield url.removesuffix("/v1")


def limited(path, limit):
    """Return the fields that limit an answer of a path to so many tokens."""
    match path:
        case "/v1/responses":
            return {"max_output_tokens": limit}
        case "/api/chat" | "/api/generate":
            return {"options": {"num_predict": limit}}
        case _:
            return {"max_tokens": limit}


def drawn(draw):
    """Return the path and the fields of a request."""
    path = draw.choice(PATHS)
    hints = {"temperature": draw.choice((0, 1)), "seed": draw.randint(0, 99)}
    fields = {"text": draw.choice(TEXTS), "pagantic": {"hints": hints}, **limited(path, draw.randint(1, 24))}
    if draw.random() < 0.3:
        hints["stop"] = [draw.choice(("3", "c", " the", "}", "hello", "e"))]
    match draw.choice(("text", "schema", "grammar", "tools", "required", "own tool")):
        case "schema":
            fields["schema"] = DIGITS
        case "grammar":
            fields["pagantic"]["output"] = {"grammar": GRAMMAR}
        case "tools" | "required" as kind if path in WITH_TOOLS:
            fields["tools"] = TOOLS[path]
            fields |= REQUIRED.get(path, {}) if kind == "required" else {}
        case "own tool" if path in WITH_TOOLS:
            fields["pagantic"]["tools"] = ["calculator"]
    return path, fields


def compared(client, request):
    """Return what a client reads in a stream and in the whole answer, and whether the answer was changed later.

    Both have one request id, so that the whole answer is that of the execution which streamed.
    """
    path, fields = request
    fields["pagantic"]["request_id"] = uuid4().hex
    response = client.post(path, json=body_of(path, "gpt-4o", stream=True, **fields))
    whole = client.post(path, json=body_of(path, "gpt-4o", stream=False, **fields))
    was_changed = "after it was sent" in response.text
    return said_of(path, response, stream=True), said_of(path, whole, stream=False), was_changed


def test_a_stream_has_the_text_usage_and_reason_of_the_whole_answer(gateway, capsys):
    draw = random.Random(41)  # noqa: S311 - no secret
    requests = [drawn(draw) for _ in range(REQUESTS)]
    with httpx.Client(base_url=gateway, timeout=120) as client, ThreadPoolExecutor(CLIENTS) as pool:
        results = list(pool.map(lambda request: compared(client, request), requests))
    told = Counter()
    for request, (streamed, whole, was_changed) in zip(requests, results, strict=True):
        told[f"{whole.status} {whole.reason or whole.error}"] += 1
        if was_changed:
            told["changed after it was sent"] += 1
            assert "schema" not in request[1], request
        else:
            assert streamed == whole, request
    with capsys.disabled():
        print(f"\n{len(requests)} whole answers and their streams: {dict(told)}")  # noqa: T201
    assert sum(count for reason, count in told.items() if reason.startswith("200")) > len(requests) / 2
