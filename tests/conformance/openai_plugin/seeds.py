"""A pytest plugin for the tests that the package `openai` carries: makes what they assume to be.

They name objects that a server with fixed answers would have. Before each test these are made again, since some tests
delete them. It stands in a folder of its own, because the tests of the package are a package `tests`, as ours are.
"""

import os

import httpx
import pytest

RESPONSES = ("677efb5139a88190b512bc3fef8e535d", "response_id", "123", "previous_response_id")
CHATS = ("completion_id", "after")
CONVERSATIONS = ("conv_123", "string")
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"messages": MESSAGES, "model": "model", "store": True, "metadata": {"foo": "string"}}
EXECUTION = {"mode": "MODE_CHAT", "messages": [{"role": "ROLE_USER", "content": "hi"}]}


@pytest.fixture(autouse=True)
def _seeds():
    with httpx.Client(base_url=os.environ["TEST_API_BASE_URL"], timeout=30) as http:
        for name in RESPONSES:
            _send(http, "/responses", {"input": "hi", "model": "m", "pagantic": {"request_id": name}})
        for name in CHATS:
            _send(http, "/chat/completions", {**CHAT, "pagantic": {"request_id": name}})
        for name in CONVERSATIONS:
            _send(http, "/executions", {**EXECUTION, "session_id": name, "request_id": f"of-{name}"})


def _send(http, path, body):
    http.post(path.removeprefix("/"), json=body).raise_for_status()
