"""The name in answers to requests that name no model: one that may be sent back."""

import pytest
from starlette.requests import Request

from gateway.http.openai.models import KEPT_S, MAX_CALLERS, DefaultName
from gateway.http.settings import HttpSettings
from pagantic.common.v1 import message_pb2
from pagantic_common.domain.errors import Unavailable

MODELS = [
    message_pb2.ModelInfo(name="vectors", capabilities=["embed"]),
    message_pb2.ModelInfo(name="small", capabilities=["chat", "tools"]),
    message_pb2.ModelInfo(name="large", capabilities=["chat"]),
]


class Listing:
    """Lists models, and counts how often."""

    def __init__(self, models=MODELS):
        self.models = models
        self.count = 0

    async def list_models(self):
        self.count += 1
        if isinstance(self.models, Exception):
            raise self.models
        return self.models


def request(key=""):
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("sent", "models", "capability", "name"),
    [
        ("mine", {}, "chat", "mine"),
        ("", {}, "chat", "small"),
        ("", {}, "embed", "vectors"),
        ("", {}, "score_pairs", ""),
        ("", {"": "large"}, "chat", "large"),
        ("", {"*": "large"}, "chat", "large"),
        ("", {"*": ""}, "chat", "small"),
    ],
)
async def test_the_name_is_the_sent_one_the_alias_of_the_empty_one_or_the_first_model(sent, models, capability, name):
    names = DefaultName(HttpSettings(models=models), capability)
    assert await names.or_sent(sent, Listing(), request()) == name


async def test_a_name_is_kept_for_a_while_for_each_caller():
    now_s = [0.0]
    names, client = DefaultName(HttpSettings(), monotonic_s=lambda: now_s[0]), Listing()
    for key in ("", "", "a", "a"):
        assert await names.or_sent("", client, request(key)) == "small"
    assert client.count == 2
    now_s[0] = KEPT_S
    await names.or_sent("", client, request("a"))
    assert client.count == 3


async def test_an_outage_is_not_kept():
    names, client = DefaultName(HttpSettings()), Listing(Unavailable("away"))
    assert await names.or_sent("", client, request()) == ""
    client.models = MODELS
    assert await names.or_sent("", client, request()) == "small"


async def test_names_of_a_bounded_number_of_callers_are_kept():
    names = DefaultName(HttpSettings())
    for number in range(MAX_CALLERS + 2):
        await names.or_sent("", Listing(), request(str(number)))
    assert len(names._kept) <= MAX_CALLERS
