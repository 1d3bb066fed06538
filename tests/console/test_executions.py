"""Executions in the console: the list, the picture of one beside its timeline in words, and replays."""

import asyncio
from dataclasses import replace

import pytest

from tests.support.console_worlds import PLAN, STRUCTURED, VOTE, with_plan, with_retries, with_tool, with_votes
from tests.support.scripted_services import USAGE, ScriptedInference, answer, scripted_services

WORLDS = {
    "a plan with retries and tools": (with_plan, PLAN),
    "a vote": (with_votes, VOTE),
    "tools and a retry": (with_retries, STRUCTURED),
}


class SlowInference(ScriptedInference):
    """Takes a part of its execution's time that is seen on a busy machine, too."""

    async def infer(self, command, hints):
        await asyncio.sleep(0.3)
        async for one in super().infer(command, hints):
            yield one


async def open_picture(opened, request_id):
    await opened.open(f"#/executions/{request_id}")
    await opened.page.wait_for_selector(".picture .item")


@pytest.mark.whole_console
async def test_executions_are_filtered_and_opened_by_keyboard(console):
    async with console() as opened:
        for number in range(3):
            await opened.execute(f"r{number}", session_id="s" if number else "")
        await opened.execute("bad", mode="MODE_STRUCTURED")
        await opened.tab_to("#nav-executions", back=True)
        await opened.press("Enter")
        await opened.page.wait_for_selector("tbody tr")
        ids = "[...document.querySelectorAll('tbody th')].map(one => one.textContent)"
        assert await opened.page.evaluate(ids) == ["bad", "r2", "r1", "r0"]
        await opened.tab_to("#state")
        await opened.press(*["ArrowDown"] * 7)
        await opened.tab_to(".filters button")
        await opened.press("Enter")
        await opened.page.wait_for_function(f"() => {ids}.join() === 'bad'")
        assert await opened.said() == "1 execution shown."
        await opened.tab_to("tbody a")
        await opened.press("Enter")
        await opened.page.wait_for_selector(".picture .item")
        assert "CONFIG_SCHEMA_REQUIRED" in await opened.text(".failure")


@pytest.mark.whole_console
async def test_older_executions_come_by_page(console):
    async with console() as opened:
        for number in range(52):
            await opened.execute(f"r{number:02}")
        await opened.open("#/executions")
        await opened.page.wait_for_selector("tbody tr")
        assert await opened.page.locator("tbody tr").count() == 50
        await opened.page.get_by_role("button", name="Older ones").press("Enter")
        await opened.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 52")
        assert await opened.page.evaluate("document.activeElement.textContent") == "r01"


@pytest.mark.parametrize(
    "world",
    [
        "a plan with retries and tools",
        "a vote",
        pytest.param("tools and a retry", marks=pytest.mark.whole_console),
    ],
)
async def test_everything_in_the_timeline_in_words_is_in_the_picture(console, world):
    make_services, request = WORLDS[world]
    async with console(make_services()) as opened:
        response = await opened.execute("r", **request)
        await open_picture(opened, "r")
        rows = await opened.page.evaluate(
            "[...document.querySelectorAll('.timeline tbody tr')].map(row => [row.dataset.sequence, "
            "row.children[3].textContent.split(' (')[0], row.querySelector('.what').textContent])"
        )
        timeline = (await opened.server.http.get("/v1/executions/r/timeline")).json()["events"]
        assert [int(row[0]) for row in rows] == [int(event["sequence"]) for event in timeline]
        details = {}
        await opened.tab_to(".picture .item")
        await opened.press("Home")
        for _ in range(await opened.page.locator(".picture .item").count()):
            await opened.press("Enter")
            sequences = await opened.page.evaluate("document.activeElement.dataset.sequences")
            shown = await opened.page.evaluate("document.getElementById('details').textContent")
            details |= dict.fromkeys(sequences.split(), shown)
            await opened.press("ArrowRight")
        for sequence, action, words in rows:
            assert f"{sequence} {action}" in details[sequence]
            assert words in details[sequence]
        everything = " ".join(details.values())
        for record in response.get("tool_calls_made", []):
            assert record["result"] in everything
        for candidate in response.get("candidates", []):
            assert candidate.get("structured_output_json", "") in everything


async def test_the_picture_shows_retries_with_their_reason_shares_differences_and_cached_tokens(console):
    async with console(with_votes()) as opened:
        await opened.execute("r", **VOTE)
        await open_picture(opened, "r")
        votes = await opened.page.evaluate("[...document.querySelectorAll('.kind-vote text')].map(t => t.textContent)")
        assert sorted(votes) == ["#0 2 of 4", "#1 2 of 4", "#2 1 of 4", "#3 abstains"]
        await opened.page.locator(".item.minority").click()
        assert "total: 42 → 17" in await opened.text("#details")


@pytest.mark.whole_console
async def test_a_retry_says_why(console):
    async with console(with_retries()) as opened:
        await opened.execute("r", **STRUCTURED)
        await open_picture(opened, "r")
        retries = opened.page.locator(".item.kind-retry")
        assert await retries.count() >= 1
        await retries.first.click()
        assert "schema validation failed" in await opened.text("#details")


@pytest.mark.whole_console
async def test_cached_tokens_are_a_part_of_their_inference(console):
    said = replace(answer(), usage=replace(USAGE, cached_prompt_tokens=4))
    async with console(scripted_services(ScriptedInference(said))) as opened:
        await opened.execute("r")
        await open_picture(opened, "r")
        shares = "one => one.querySelector('.cached').getBBox().width / one.querySelector('.bar').getBBox().width"
        inference = opened.page.locator(".item.kind-inference")
        assert await inference.evaluate(shares) == pytest.approx(0.4)
        await inference.click()
        assert "10, 4 of them cached" in await opened.text("#details")


@pytest.mark.whole_console
async def test_a_long_label_is_whole_where_its_bar_has_room(console):
    said = replace(answer(), model="a-model-with-a-name-of-letters" * 8)  # This is wider than the page.
    label = f"{said.model} 10 → 3"
    async with console(scripted_services(SlowInference(said))) as opened:
        await opened.execute("r")
        await open_picture(opened, "r")
        inference = opened.page.locator(".item.kind-inference")
        drawn = "one => [one.querySelector('text').textContent, one.querySelector('.bar').getBBox().width]"
        shown = set()
        for _ in range(12):
            text, width = await inference.evaluate(drawn)
            assert (text == label) == (width >= len(label) * 6.7 + 10)
            shown.add(text)
            await opened.page.get_by_role("button", name="Zoom in").press("Enter")
        assert shown == {label, f"{label[:34]}…"}


@pytest.mark.whole_console
async def test_details_open_by_click_and_by_enter_and_close_again(console):
    async with console() as opened:
        await opened.execute("r")
        await open_picture(opened, "r")
        first = opened.page.locator(".picture .item").first
        await first.click()
        assert await first.get_attribute("aria-expanded") == "true"
        await opened.tab_to(".picture .item", back=True)
        await opened.press("Enter")
        assert await first.get_attribute("aria-expanded") == "false"
        await opened.press("End", " ")
        assert "inference" in await opened.text("#details h3")


@pytest.mark.whole_console
async def test_an_execution_that_runs_is_followed_to_its_end_and_can_be_stopped(console):
    services = scripted_services(ScriptedInference(None))
    async with console(services) as opened:
        await opened.say("hi")
        await opened.page.wait_for_selector(".answer-foot a")
        await opened.tab_to(".answer-foot a", back=True)
        await opened.press("Enter")
        await opened.page.wait_for_selector(".item.open")
        await opened.page.get_by_role("button", name="Stop").press("Enter")
        await opened.page.wait_for_function("() => document.querySelector('.facts .state').textContent === 'CANCELLED'")
        assert "CANCELLED_SIGNAL" in await opened.text(".failure")


async def test_a_replay_with_a_changed_prompt_and_result_stands_beside_the_recorded_answer(console):
    services = with_tool(*with_tool().inference.outputs, answer("It is night."))
    async with console(services) as opened:
        await opened.execute("r", prompt={"text": "Be kind."})
        await opened.open("#/executions/r")
        await opened.page.wait_for_selector("a.main-action")
        await opened.tab_to("a.main-action")
        await opened.press("Enter")
        await opened.page.wait_for_selector("#result-0")
        for selector, text in (("#system", "Be brief."), ("#result-0", "midnight")):
            await opened.tab_to(selector)
            await opened.press("Control+a")
            await opened.type(text)
        await opened.tab_to("form .main-action")
        await opened.press("Enter")
        await opened.page.wait_for_selector(".steps tr.differs")
        sides = [await one.inner_text() for one in await opened.page.query_selector_all(".side .answer > .output")]
        assert sides == ["It is noon.", "It is night."]
        assert "The replay has ended." in await opened.said()
        steps = await opened.text(".steps")
        assert ("midnight" in steps, "differs" in steps) == (True, True)
        last = services.inference.commands[-1].messages
        assert (last[0].content, last[-1].content) == ("Be brief.", "midnight")


@pytest.mark.whole_console
async def test_an_execution_that_was_not_kept_says_that_it_has_no_replay(console):
    async with console() as opened:
        await opened.execute("r", keep_request=False)
        await open_picture(opened, "r")
        assert "cannot be replayed" in await opened.text(".facts + .row")
        await opened.open("#/executions/r/replay")
        await opened.page.wait_for_selector(".failure")
        assert "keep_request" in await opened.text(".failure")


@pytest.mark.whole_console
async def test_an_unknown_execution_is_a_failure_with_a_next_step(console):
    async with console() as opened:
        await opened.open("#/executions/nobody")
        await opened.page.wait_for_selector(".failure")
        shown = await opened.text(".failure")
        assert ("NOT_FOUND" in shown, "Check the id" in shown) == (True, True)


@pytest.mark.whole_console
async def test_an_approval_is_a_span_with_who_decided(console):
    async with console(with_tool()) as opened:
        await opened.page.evaluate("document.getElementById('ask').click()")
        await opened.say("hi")
        await opened.page.wait_for_selector(".approval")
        await opened.page.fill(".approval input", "it is harmless")
        await opened.page.click(".approval .main-action")
        await opened.answers()
        await opened.page.click(".answer-foot a")
        await opened.page.wait_for_selector(".item.kind-approval")
        await opened.page.locator(".item.kind-approval").click()
        assert "clock approved by local: it is harmless" in await opened.text("#details")
