"""A connection that is lost costs nothing: answers go on, and pages that refresh themselves say that they are old."""

import asyncio

import pytest

from services.orchestrator.core.model.response import InferenceDelta
from tests.support.console_worlds import with_tool
from tests.support.scripted_services import ScriptedInference, answer, scripted_services


class Paused(ScriptedInference):
    """Says half of its answer, and the rest when it may."""

    def __init__(self):
        super().__init__(answer("first half, second half"))
        self.may_go_on = asyncio.Event()

    async def infer(self, command, hints):
        yield InferenceDelta()
        yield InferenceDelta("first half, ")
        await self.may_go_on.wait()
        yield InferenceDelta("second ")
        yield InferenceDelta("half")
        yield self.outputs[0]


async def half(opened):
    await opened.say("hi")
    await opened.page.get_by_text("first half,").wait_for()


@pytest.mark.whole_console
async def test_an_answer_goes_on_when_the_network_is_back(console):
    services = scripted_services(Paused())
    async with console(services) as opened, opened.through_relay() as relay:
        await half(opened)
        relay.cut()
        await opened.page.wait_for_selector("main.lost")
        assert (await opened.said(), relay.lost_count > 0) == ("The connection was lost. Trying again.", True)
        services.inference.may_go_on.set()
        relay.mend()
        assert await opened.answers() == ["first half, second half"]
        assert await opened.page.locator("main.lost").count() == 0


@pytest.mark.whole_console
async def test_a_page_that_is_loaded_again_follows_the_answer_to_its_end(console):
    services = scripted_services(Paused())
    async with console(services) as opened:
        await half(opened)
        await opened.page.reload()
        await opened.page.wait_for_selector("[aria-busy]")
        services.inference.may_go_on.set()
        assert await opened.answers() == ["first half, second half"]


@pytest.mark.whole_console
@pytest.mark.parametrize("section", ["load", "tools"])
async def test_a_page_that_refreshes_says_that_the_connection_is_lost_and_goes_on_when_it_is_back(console, section):
    async with console(with_tool()) as opened, opened.through_relay() as relay:
        await opened.open(f"#/{section}")
        await opened.page.wait_for_selector(".replicas .meters, .tool-list summary")
        if section == "tools":  # The calls that wait were asked for, too: before that a loss is a failure.
            await opened.page.get_by_text("No call waits.").wait_for()
        relay.cut()
        await opened.page.wait_for_selector(".note.warned")
        assert "The connection was lost" in await opened.text(".note.warned")
        relay.mend()
        await opened.page.wait_for_selector(".note.warned", state="detached")


@pytest.mark.whole_console
async def test_a_paused_page_does_not_say_that_it_tries_again(console):
    async with console() as opened, opened.through_relay() as relay:
        await opened.open("#/load")
        await opened.page.wait_for_selector(".replicas .meters")
        relay.cut()
        await opened.page.wait_for_selector(".note.warned")
        await opened.page.get_by_role("button", name="Pause").press("Enter")
        await opened.page.wait_for_selector(".note.warned", state="detached")


@pytest.mark.whole_console
async def test_a_file_whose_connection_is_lost_can_be_sent_again(console):
    async with console(has_collections=True) as opened, opened.through_relay() as relay:
        await opened.server.http.post("/v1/collections", json={"name": "lamps"})
        await opened.open("#/collections/lamps")
        await opened.page.wait_for_selector(".facts dd")
        relay.cut()
        file = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"The lamp is red."}
        await opened.page.set_input_files("#files", file)
        await opened.page.wait_for_selector(".files .failure")
        shown = await opened.text(".files")
        assert ("NO_CONNECTION" in shown, "Next step" in shown) == (True, True)
        relay.mend()
        await opened.page.get_by_role("button", name="Send again").press("Enter")
        await opened.page.get_by_text("added: 1 chunk").wait_for()


SECTIONS = ["Sessions", "Collections", "Models", "Load", "Tools"]


@pytest.mark.whole_console
@pytest.mark.parametrize("section", SECTIONS)
async def test_a_section_that_cannot_be_loaded_says_why_and_is_tried_again(console, section):
    async with console(with_tool()) as opened, opened.through_relay() as relay:
        for name in (section, "Chat"):  # the modules of the section are there from now on
            await opened.open(f"#/{name.lower()}")
            await opened.page.get_by_role("heading", name=name, exact=True, level=1).wait_for()
        relay.cut()
        await opened.page.evaluate("section => { location.hash = `#/${section}`; }", section.lower())
        await opened.page.wait_for_selector("main .failure")
        assert "NO_CONNECTION" in await opened.text("main .failure")
        relay.mend()
        for _ in range(50):  # a section may have several, each with a button of its own
            pressed = await opened.page.evaluate(
                "() => [...document.querySelectorAll('main .failure button')].map((one) => one.click()).length"
            )
            if not pressed:
                break
            await asyncio.sleep(0.2)
        await opened.page.wait_for_selector("main .failure", state="detached")


@pytest.mark.whole_console
async def test_a_section_whose_modules_cannot_be_loaded_says_what_to_do(console):
    async with console() as opened, opened.through_relay() as relay:
        relay.cut()
        await opened.tab_to("#nav-tools", back=True)
        await opened.press("Enter")
        await opened.page.wait_for_selector("main .failure")
        assert "Load the page again" in await opened.text("main .failure")
        opened.mistakes.clear()
