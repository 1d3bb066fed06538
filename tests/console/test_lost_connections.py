"""A connection that is lost in the middle of an answer costs nothing."""

import asyncio

import pytest

from services.orchestrator.core.model.response import InferenceDelta
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


@pytest.mark.whole
async def test_an_answer_goes_on_when_the_network_is_back(console):
    services = scripted_services(Paused())
    async with console(services) as opened:
        await half(opened)
        await opened.context.set_offline(True)
        services.inference.may_go_on.set()
        await asyncio.sleep(0.5)
        await opened.context.set_offline(False)
        assert await opened.answers() == ["first half, second half"]


@pytest.mark.whole
async def test_a_page_that_is_loaded_again_follows_the_answer_to_its_end(console):
    services = scripted_services(Paused())
    async with console(services) as opened:
        await half(opened)
        await opened.page.reload()
        await opened.page.wait_for_selector("[aria-busy]")
        services.inference.may_go_on.set()
        assert await opened.answers() == ["first half, second half"]
