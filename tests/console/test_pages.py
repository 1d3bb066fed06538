"""Every page for everybody: axe, each theme and width, and what the first paint takes."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.console_worlds import (
    CALL,
    CITED,
    LAMPS,
    PLAN,
    VOTE,
    waits,
    with_plan,
    with_tool,
    with_votes,
    with_writing_tool,
)
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

SHOTS = os.environ.get("PAGANTIC_TEST_SCREENSHOTS")
WIDTHS = (360, 768, 1024, 1440)
MANY = """Here is a program:

```python
def total(prices):
    return sum(prices)
```

It adds the prices, and it works for any number of them, also for none, for which the sum is zero."""


def with_citations():
    return scripted_services(ScriptedInference(answer(json.dumps(CITED))))


def with_program():
    return with_tool(answer("", calls=[CALL]), answer(MANY))


async def new_chat(opened):
    await opened.page.click("#options > summary")


async def chat(opened):
    await opened.say("Which of the two lamps is cheaper, and by how much? Please look it up.")
    await opened.answers()
    await opened.page.click(".calls summary")


async def waiting(opened):
    await opened.page.evaluate("document.getElementById('ask').click()")
    await opened.say("What time is it?")
    await opened.page.wait_for_selector(".approval")


async def vote(opened):
    await opened.execute("a-vote", **VOTE)
    await opened.open("#/executions/a-vote")
    await opened.page.wait_for_selector(".picture .item")
    await opened.page.locator(".item.minority").click()


async def plan(opened):
    await opened.execute("a-plan", **PLAN)
    await opened.open("#/executions/a-plan")
    await opened.page.wait_for_selector(".picture .item")
    await opened.page.locator(".item.kind-retry").first.click()


async def executions(opened):
    for number in range(6):
        await opened.execute(f"console-7f3a90{number}", session_id=f"s{number}" if number % 2 else "")
    await opened.execute("nightly-report", mode="MODE_STRUCTURED")
    await opened.open("#/executions")
    await opened.page.wait_for_selector("tbody tr")


async def replay(opened):
    await opened.execute("r", prompt={"text": "Be kind."})
    await opened.open("#/executions/r/replay")
    await opened.page.fill("#result-0", "midnight")
    await opened.page.click("form .main-action")
    await opened.page.wait_for_selector(".steps tr.differs")


async def failure(opened):
    await opened.open("#/executions/nobody")
    await opened.page.wait_for_selector(".failure")


async def key(opened):
    await opened.page.click("#key-button")


async def sessions(opened):
    for number, text in enumerate(
        ["Which of the two lamps is cheaper?", "What does the report of March say about lamps?"]
    ):
        await opened.execute(f"r{number}", session_id=f"s{number}", messages=[{"role": "ROLE_USER", "content": text}])
        title = {"state_json": {"console.title": f'"{text}"'}}
        await opened.server.http.patch(f"/v1/sessions/s{number}", json=title)
    await opened.execute("r", session_id="nightly-report")
    await opened.open("#/sessions")
    await opened.page.wait_for_selector("tbody tr")


async def session(opened):
    await sessions(opened)
    await opened.open("#/sessions/s0")
    await opened.page.get_by_text("of 100 tokens").wait_for()


async def deleting(opened):
    await session(opened)
    await opened.page.click("#delete")


async def nothing(opened):
    await opened.open("#/sessions")
    await opened.page.wait_for_selector("main .empty a")


async def collections(opened):
    for name in ("handbook", "reports-of-2026"):
        await opened.server.http.post("/v1/collections", json={"name": name})
    await opened.open("#/collections")
    await opened.page.wait_for_selector("tbody tr")


async def collection(opened):
    await collections(opened)
    await opened.open("#/collections/handbook")
    await opened.page.wait_for_selector(".facts dd")
    good = {"name": "lamps.txt", "mimeType": "text/plain", "buffer": LAMPS.encode()}
    bad = {"name": "a scan of the report.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4"}
    await opened.page.set_input_files("#files", [good, bad])
    await opened.page.locator("main").get_by_text("1 file stored, 1 not stored.").wait_for()
    await opened.page.wait_for_function("() => document.querySelector('.facts dd').textContent === '1'")
    await opened.page.fill("#question", "What does the red lamp cost?")
    await opened.page.press("#question", "Enter")
    await opened.page.wait_for_selector(".sources button")
    await opened.page.click(".sources button")
    await opened.page.wait_for_selector(".chunk mark")


async def tools(opened):
    running = await waits(opened, "a-question-of-somebody")
    await opened.open("#/tools")
    await opened.page.wait_for_selector(".approval")
    await opened.page.click(".tool-list summary")
    opened.page.once("close", lambda _: running.cancel())


async def models(opened):
    await opened.open("#/models")
    await opened.page.wait_for_selector(".command")


async def load(opened):
    await opened.open("#/load")
    await opened.page.get_by_text("in the last minutes").first.wait_for()


PAGES = {
    "new chat": (new_chat, with_tool),
    "chat": (chat, with_program),
    "waiting": (waiting, with_tool),
    "vote": (vote, with_votes),
    "plan": (plan, with_plan),
    "executions": (executions, with_tool),
    "replay": (replay, with_tool),
    "failure": (failure, with_tool),
    "key": (key, with_tool),
    "no sessions": (nothing, with_tool),
    "sessions": (sessions, with_tool),
    "session": (session, with_tool),
    "deleting": (deleting, with_tool),
    "collections": (collections, with_tool),
    "collection": (collection, with_citations),
    "tools": (tools, with_writing_tool),
    "models": (models, with_tool),
    "load": (load, with_tool),
}
WITH_COLLECTIONS = ("collections", "collection")
SAMPLE = {("chat", "light", 1440), ("plan", "dark", 360)}
EVERY = [
    pytest.param(page, theme, width, marks=[] if (page, theme, width) in SAMPLE else pytest.mark.whole_console)
    for page in PAGES
    for theme in ("light", "dark")
    for width in WIDTHS
]


@pytest.mark.parametrize(("name", "theme", "width"), EVERY)
async def test_a_page_has_no_serious_problem_and_fits(console, axe, name, theme, width):
    act, make_services = PAGES[name]
    has_collections = name in WITH_COLLECTIONS
    async with console(make_services(), theme=theme, width=width, has_collections=has_collections) as opened:
        await act(opened)
        if SHOTS:
            path = Path(SHOTS) / f"{name.replace(' ', '-')}-{theme}-{width}.png"
            await opened.page.screenshot(path=path, full_page=True)
        assert await opened.problems(axe) == []
        assert await opened.overflow() <= 0


@pytest.mark.whole_console
async def test_a_theme_that_was_chosen_holds_against_that_of_the_system(console):
    async with console(theme="light") as opened:
        colour = "getComputedStyle(document.body).backgroundColor"
        light = await opened.page.evaluate(colour)
        await opened.tab_to("#theme-button", back=True)
        await opened.press("Enter", "Enter")
        assert await opened.said() == "Theme: dark"
        dark = await opened.page.evaluate(colour)
        await opened.page.reload()
        assert dark != light
        assert await opened.page.evaluate(colour) == dark


@pytest.mark.whole_console
async def test_the_first_tab_skips_to_the_content(console):
    async with console() as opened:
        await opened.page.evaluate("document.activeElement.blur()")
        await opened.page.reload()
        await opened.page.wait_for_selector("main h1")
        await opened.page.evaluate("document.getElementById('skip').focus()")
        await opened.press("Enter")
        assert await opened.page.evaluate("document.activeElement.id") == "main"


async def test_the_page_is_small_and_asks_nobody_else(console):
    async with console() as opened:
        await opened.page.reload()
        await opened.page.wait_for_selector("main h1")
        paint = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        await opened.page.wait_for_function(paint)
        sizes = await opened.page.evaluate(
            "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
            ".map((one) => [one.name, one.decodedBodySize])"
        )
        bytes_of_page = sum(size for name, size in sizes if "/v1/" not in name)
        painted_ms = await opened.page.evaluate(paint)
        sys.stdout.write(f"first paint after {painted_ms:.0f} ms; {bytes_of_page} bytes in {len(sizes)} answers\n")
        assert 0 < bytes_of_page < 120_000
        assert {url.split("/")[2] for url in opened.requests} == {opened.url.split("/")[2]}
