"""Answers in the terminal program: as they stream, their reasoning, calls and failures, and how they are stopped."""

import asyncio

import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from tests.support.scripted_services import ScriptedInference, scripted_services
from tests.support.terminal_worlds import Paused, Thinking


async def test_an_answer_streams_and_the_meter_shows_how_full_the_context_is(terminal):
    inference = Paused()
    async with terminal(scripted_services(inference)) as person:
        assert "0 of 8,192 tokens, 0%" in person.text
        await person.say("hi")
        await person.wait_for("first half,")
        await person.wait_for(r"writing… \d+ s, Escape stops")
        inference.may_go_on.set()
        await person.wait_for("first half, second half")
        await person.wait_for(r"█░{9} 13 of 100 tokens, 13%")
        assert "scripted" in person.text


async def test_reasoning_is_folded_until_a_key_opens_it(terminal):
    async with terminal(scripted_services(Thinking())) as person:
        await person.ask("how many?")
        assert "▸ reasoning, 6 words (Ctrl+R opens it)" in person.text
        assert "First I count" not in person.text
        await person.press("ctrl+r")
        await person.wait_for("First I count. Then I add.")
        await person.press("ctrl+r")
        await person.wait_until(lambda: "First I count" not in person.text)


@pytest.mark.parametrize("key", ["escape", pytest.param("ctrl+c", marks=pytest.mark.whole_terminal)])
async def test_a_key_stops_an_answer_and_the_text_so_far_stays(terminal, key):
    async with terminal(scripted_services(ScriptedInference(None))) as person:
        await person.say("hi")
        await person.wait_for("partial")
        await person.press(key)
        await person.wait_for("stopped; the text so far stays in the conversation")
        assert "partial" in person.text
        assert (await person.newest()).state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
        await person.press("ctrl+c")
        await person.wait_for(r"Ctrl\+C again quits")
        assert person.app.is_running
        await person.press("ctrl+c")
        await person.wait_until(lambda: not person.app.is_running)
        assert person.app.return_code == 0


@pytest.mark.whole_terminal
async def test_a_request_that_is_stopped_before_it_is_taken_is_stopped_all_the_same(terminal):
    async with terminal(scripted_services(ScriptedInference(None))) as person:
        await person.say("hi")
        await person.press("escape")
        await person.wait_for("stopped; the text so far")


async def test_a_failure_shows_its_code_and_the_next_step(terminal):
    failure = InvalidRequest("9000 tokens, at most 8192", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED)
    async with terminal(scripted_services(ScriptedInference(failure))) as person:
        await person.say("hi")
        await person.wait_for("INFERENCE_CONTEXT_EXCEEDED: 9000 tokens, at most 8192")
        await person.wait_for(r"next: shorten the text, or begin another conversation with Ctrl\+N")
        assert (await person.newest()).request_id in person.text


@pytest.mark.whole_terminal
async def test_a_message_that_nobody_took_is_in_the_field_again(terminal):
    async with terminal(is_relayed=True) as person:
        person.relay.cut()
        await person.say("please keep me")
        await person.wait_for("UNAVAILABLE: ")
        await person.wait_for("next: start the services with `pagantic up`")
        assert person.app.query_one("#composer").text == "please keep me"
        person.relay.mend()
        await person.press_until("hello", "enter")  # gRPC waits for a while before it connects again


@pytest.mark.whole_terminal
async def test_without_services_it_says_what_to_start_and_goes_on_when_they_are_there(terminal):
    async with terminal(is_relayed=True) as person:
        person.relay.cut()
        person.app.run_worker(person.app._connect())
        await person.wait_for("pagantic up")
        person.relay.mend()
        await person.wait_until(lambda: "pagantic up" not in person.text)


async def test_a_lost_connection_costs_nothing_of_an_answer(terminal):
    inference = Paused()
    async with terminal(scripted_services(inference), is_relayed=True) as person:
        await person.say("hi")
        await person.wait_for("first half,")
        person.relay.cut()
        await person.wait_for("connection lost, trying again")
        assert "first half," in person.text
        inference.may_go_on.set()
        await asyncio.sleep(0.3)
        person.relay.mend()
        await person.wait_for("first half, second half")
        await person.wait_until(lambda: "connection lost" not in person.text)
        assert len(inference.commands) == 1


@pytest.mark.whole_terminal
async def test_an_earlier_message_comes_back_by_a_key(terminal):
    async with terminal() as person:
        await person.ask("what is a lamp?")
        await person.press("up")
        assert person.app.query_one("#composer").text == "what is a lamp?"
        await person.press("down")
        assert person.app.query_one("#composer").text == ""
