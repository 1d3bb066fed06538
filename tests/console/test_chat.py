"""A conversation in the console, by keyboard alone."""

import asyncio

import pytest

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, Unavailable
from services.orchestrator.core.model.response import InferenceDelta
from tests.integration.orchestrator.test_identity import ADMIN, ADMIN_STORED
from tests.support.console_worlds import ASK, SCHEMA, with_tool, with_votes
from tests.support.scripted_services import (
    ScriptedContext,
    ScriptedInference,
    answer,
    scripted_services,
)

CITED = '{"in_sources": true, "claims": [{"source": 1, "quote": "The lamp is green", "text": "It is green."}]}'


class Reasoning(ScriptedInference):
    async def infer(self, command, hints):
        yield InferenceDelta()
        yield InferenceDelta("", "First I think.")
        async for piece in super().infer(command, hints):
            yield piece


async def test_a_conversation_goes_on_and_is_there_when_the_page_is_loaded_again(console):
    services = scripted_services(ScriptedInference(answer("hello there"), answer("and again")))
    async with console(services) as opened:
        await opened.say("hi")
        assert await opened.answers() == ["hello there"]
        assert await opened.said() == "Answer: hello there"
        await opened.say("more")
        assert await opened.answers(2) == ["hello there", "and again"]
        second = services.inference.commands[1].messages
        assert [message.content for message in second] == ["hi", "hello there", "more"]
        await opened.page.reload()
        assert await opened.answers(2) == ["hello there", "and again"]
        assert "more" in await opened.text(".turns")


@pytest.mark.whole_console
async def test_options_are_sent_and_kept_for_the_tab(console):
    inference = ScriptedInference()
    async with console(scripted_services(inference)) as opened:
        await opened.tab_to("#options > summary", back=True)
        await opened.press("Enter")
        for selector, text in (("#temperature", "0.5"), ("#max_tokens", "7"), ("#system", "Be brief.")):
            await opened.tab_to(selector)
            await opened.type(text)
        await opened.say("hi")
        await opened.answers()
        [command] = inference.commands
        assert (command.messages[0].content, command.messages[1].content) == ("Be brief.", "hi")
        [hints] = inference.hinted
        assert (hints.max_tokens, hints.temperature) == (7, 0.5)
        await opened.page.reload()
        assert await opened.page.input_value("#system") == "Be brief."


async def test_stop_cancels_what_runs(console):
    services = scripted_services(ScriptedInference(None))
    async with console(services) as opened:
        await opened.say("hi")
        await asyncio.wait_for(services.inference.waiting.wait(), 60)
        await opened.page.get_by_role("button", name="Stop").wait_for()
        await opened.press("Tab", "Enter")
        await asyncio.wait_for(services.inference.stopped.wait(), 60)
        await opened.page.wait_for_selector(".failure")
        shown = await opened.text(".failure")
        assert ("CANCELLED_SIGNAL" in shown, "Next step" in shown) == (True, True)
        assert await opened.page.evaluate("document.activeElement.id") == "message"


@pytest.mark.whole_console
async def test_reasoning_is_folded_and_tool_calls_show_arguments_and_results(console):
    services = with_tool()
    services.inference.__class__ = Reasoning
    async with console(services) as opened:
        await opened.say("What time is it?")
        assert (await opened.answers())[-1] == "It is noon."
        thoughts = opened.page.locator(".reasoning")
        assert not await thoughts.evaluate("one => one.open")
        await opened.tab_to(".reasoning > summary", back=True)
        await opened.press("Enter")
        assert "First I think." in await thoughts.inner_text()
        await opened.tab_to(".calls summary")
        await opened.press("Enter")
        call = await opened.page.locator(".calls").text_content()
        for words in ("clock", "gave a result", '"zone": "UTC"', "noon"):
            assert words in call


DECISIONS = [
    pytest.param("Approve", marks=pytest.mark.whole_console),
    pytest.param("Reject", marks=pytest.mark.whole_console),
    "change",
]


@pytest.mark.parametrize("decision", DECISIONS)
async def test_a_call_is_approved_changed_or_rejected(console, decision):
    services = with_tool()
    async with console(services) as opened:
        await opened.tab_to("#options > summary", back=True)
        await opened.press("Enter")
        await opened.tab_to("#ask")
        await opened.press("Space")
        await opened.say("What time is it?")
        await opened.page.wait_for_selector(".approval")
        assert await opened.said() == "The tool clock waits for your approval."
        if decision == "change":
            await opened.tab_to(".approval textarea", back=True)
            await opened.press("Control+a")
            await opened.type('{"zone": "CET"}')
        button = ".approval button:not(.main-action)" if decision == "Reject" else ".approval button.main-action"
        await opened.tab_to(button, back=decision != "change")
        await opened.press("Enter")
        assert (await opened.answers())[-1] == "It is noon."
    zones = {"Approve": ['{"zone": "UTC"}'], "change": ['{"zone": "CET"}'], "Reject": []}
    assert [call.arguments_json for call in services.tools.calls] == zones[decision]


@pytest.mark.whole_console
async def test_a_decision_that_is_refused_says_why_and_can_be_mended(console):
    async with console(with_tool()) as opened:
        running = asyncio.create_task(opened.execute("r", session_id="s", background=True, tool_rules=ASK))
        await asyncio.sleep(0)
        await opened.page.wait_for_function("async () => (await (await fetch('v1/approvals')).json()).approvals.length")
        await opened.open("#/chat/s")
        await opened.page.wait_for_selector(".approval textarea")
        await opened.page.fill(".approval textarea", "5")
        await opened.page.click(".approval button.main-action")
        await opened.page.wait_for_selector(".approval .failure")
        assert "arguments_json" in await opened.text(".approval .failure")
        await opened.page.fill(".approval textarea", "{}")
        await opened.page.click(".approval button.main-action")
        assert (await opened.answers())[-1] == "It is noon."
        await running


@pytest.mark.whole_console
async def test_a_structured_answer_and_a_vote(console):
    services = with_votes()
    async with console(services) as opened:
        await opened.tab_to("#options > summary", back=True)
        await opened.press("Enter")
        await opened.tab_to("#mode")
        await opened.press("ArrowDown", "ArrowDown")
        await opened.tab_to("#schema")
        await opened.press("Control+a")
        await opened.type(SCHEMA)
        await opened.tab_to("#samples")
        await opened.type("4")
        await opened.say("How much?")
        assert (await opened.answers())[-1] == '{"total": 42}'
        votes = await opened.text(".votes")
        for words in ("2 of 4", "1 of 4", "total: 42 → 17", "abstains"):
            assert words in votes


@pytest.mark.whole_console
async def test_citations_have_marks_that_lead_to_their_sources(console):
    chunk = Chunk("1", "The lamp is green. It hangs in the hall.", "house.txt", 1.0, "bm25")
    services = scripted_services(ScriptedInference(answer(CITED)), context=ScriptedContext(chunk))
    async with console(services) as opened:
        await opened.tab_to("#options > summary", back=True)
        await opened.press("Enter")
        await opened.tab_to("#collection")
        await opened.type("notes")
        await opened.say("Which colour?")
        assert (await opened.answers())[-1] == "It is green. [1]"
        await opened.tab_to(".mark", back=True)
        await opened.press("Enter")
        focused = await opened.page.evaluate("document.activeElement.textContent")
        assert ("house.txt" in focused, "The lamp is green" in focused) == (True, True)


async def test_a_failure_says_its_code_what_happened_and_the_next_step(console):
    lost = Unavailable("the engine is gone", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    async with console(scripted_services(ScriptedInference(lost))) as opened:
        await opened.say("hi")
        await opened.page.wait_for_selector(".failure")
        shown = await opened.text(".failure")
        assert ("INFERENCE_ENGINE_ERROR" in shown, "the engine is gone" in shown) == (True, True)
        assert "Next step: Send it again." in shown
        assert "The answer failed" in await opened.said()


@pytest.mark.whole_console
async def test_a_request_that_is_refused_can_be_sent_again(console):
    async with console() as opened:
        await opened.page.evaluate("document.getElementById('max_tokens').value = -1")
        await opened.say("hi")
        await opened.page.wait_for_selector(".failure")
        assert "max_tokens" in await opened.text(".failure")
        await opened.page.evaluate("document.getElementById('max_tokens').value = 5")
        await opened.tab_to(".failure button", back=True)
        await opened.press("Enter")
        await opened.page.wait_for_function("() => document.querySelectorAll('.turns > li').length === 2")
        assert "hello" in await opened.answers()


async def test_a_key_is_asked_for_kept_in_the_tab_and_sent(console):
    keys = {"admin_keys": lambda: {ADMIN.key_id: ADMIN_STORED}}
    async with console(orchestrator=keys) as opened:
        await opened.page.wait_for_selector("dialog[open]")
        await opened.type("wrong")
        await opened.press("Enter")
        await opened.page.get_by_text("The key was not accepted").wait_for()
        await opened.press("Control+a")
        await opened.type(ADMIN.text)
        await opened.press("Enter")
        await opened.page.wait_for_selector("dialog", state="hidden")
        await opened.say("hi")
        assert await opened.answers() == ["hello"]
        kept = await opened.page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
        assert [ADMIN.text in one for one in kept] == [False, True]
        assert not any(ADMIN.text in url for url in opened.requests)
