"""Moderations over HTTP, in the shape of OpenAI's API."""

import math

import openai
import pytest

from gateway.http.openai.judging.moderations import CATEGORIES
from tests.integration.http.test_responses import client_of
from tests.support.openai_document import problems_of
from tests.support.scripted_services import ScriptedInference, scripted_services

GUARD = {"moderation_model": "guard"}


def services_that_find(*found):
    """Services whose model gives these categories 0.9, and the others 0.1."""
    inference = ScriptedInference()
    shares = (0.9 if category in found else 0.1 for category in CATEGORIES)
    inference.label_logprobs = [(math.log(share), math.log(1 - share)) for share in shares]
    return scripted_services(inference)


async def test_each_category_has_the_probability_that_the_guard_model_gives_it(served):
    services = services_that_find("hate", "violence")
    async with served(services, **GUARD) as server, client_of(server) as client:
        told = await client.moderations.create(model="omni-moderation-latest", input="I hate you.")
        parsed = told.to_dict()
    (result,) = told.results
    assert result.flagged
    assert {category for category, is_flagged in result.to_dict()["categories"].items() if is_flagged} == {
        "hate",
        "violence",
    }
    assert result.category_scores.hate == pytest.approx(0.9)
    assert result.category_scores.self_harm == pytest.approx(0.1)
    assert (told.model, told.id) == ("omni-moderation-latest", f"modr-{parsed['pagantic']['request_id']}")
    (command,) = services.inference.commands
    assert services.inference.hinted[-1].model == "guard"
    for question, statement in zip(command.questions, CATEGORIES.values(), strict=True):
        assert statement in question.ending
    own = {name: value for name, value in parsed.items() if name != "pagantic"}
    assert problems_of(own, "CreateModerationResponse") == []


async def test_texts_are_judged_one_by_one_and_parts_together(served):
    services = services_that_find()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    async with served(services, **GUARD) as server, client_of(server) as client:
        several = await client.moderations.create(input=["a", "b", "c"])
        joined = await client.moderations.create(input=parts)
    assert [result.flagged for result in several.results] == [False, False, False]
    assert len(set(several.to_dict()["pagantic"]["request_ids"])) == 3
    assert len(joined.results) == 1
    assert "one\n\ntwo" in services.inference.commands[-1].messages[-1].content


async def test_a_category_is_flagged_from_the_threshold_on(served):
    async with served(services_that_find("hate"), moderation_threshold=0.95, **GUARD) as server:
        told = (await server.http.post("/v1/moderations", json={"input": "x"})).json()
    assert not told["results"][0]["flagged"]


async def test_a_deployment_without_a_guard_model_says_how_to_have_one(served):
    async with served() as server, client_of(server) as client:
        with pytest.raises(openai.InternalServerError, match="PAGANTIC_HTTP_MODERATION_MODEL") as raised:
            await client.moderations.create(input="x")
    assert (raised.value.status_code, raised.value.response.headers["x-should-retry"]) == (501, "false")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "at least 1 item"),
        (["x"] * 33, "at most 32 items"),
        ([{"type": "image_url", "image_url": {"url": "data:"}}], "only text can be judged"),
        (3, "input"),
    ],
)
async def test_what_cannot_be_judged_is_refused(served, given, words):
    async with served(services_that_find(), **GUARD) as server:
        response = await server.http.post("/v1/moderations", json={"input": given})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]


async def test_the_first_failure_is_the_error_of_all(served):
    services = services_that_find()
    services.inference.label_logprobs = RuntimeError("broken")
    async with served(services, **GUARD) as server:
        response = await server.http.post("/v1/moderations", json={"input": ["a", "b"]})
    assert response.status_code == 500
