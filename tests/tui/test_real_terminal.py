"""`pagantic` on a terminal of its own: sizes, a long paste, Ctrl-C at any moment, and the terminal as it was."""

import asyncio
import re
import signal
import subprocess

import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from tests.support.ports import free_ports
from tests.support.screen import PAGANTIC
from tests.support.scripted_services import ScriptedInference, answer, scripted_services
from tests.support.terminal_worlds import CONTROLS, Paused

CTRL_C, CTRL_G, CTRL_N, CTRL_Q, CTRL_T, ESCAPE = "\x03", "\x07", "\x0e", "\x11", "\x14", "\x1b"
READY = "context [░█]{10} "
STOPPED = "stopped; the text so far"


async def quit_by_ctrl_c(opened):
    await opened.type(CTRL_C)
    await opened.wait_for(r"Ctrl\+C again quits")
    await opened.type(CTRL_C)
    assert await opened.end() == 0
    assert opened.is_restored()


@pytest.mark.parametrize("lines", [600, pytest.param(6400, marks=pytest.mark.whole_terminal)])
async def test_a_conversation_with_a_resize_a_long_paste_a_stop_and_the_end(screen, lines):
    inference = Paused()
    inference.outputs = [answer("first half, second half")]
    async with screen(scripted_services(inference)) as opened:
        await opened.wait_for(READY)
        await opened.paste("Lamps cost 42. \x07\r" * lines)
        await opened.wait_for("Lamps cost 42")
        await opened.type("\r")
        await opened.wait_for("first half,")
        opened.resize(120, 40)
        await opened.wait_for(r"● |none yet")
        assert max(map(len, opened.lines)) > 80
        inference.may_go_on.set()
        await opened.wait_for("first half, second half")
        await opened.wait_for(r"request \w+:")
        assert len(inference.commands[0].messages[-1].content) == len("Lamps cost 42. \n") * lines
        opened.resize(80, 24)
        inference.may_go_on.clear()
        await opened.wait_until(lambda: len(opened.lines[-1]) < 80 and "Quit" in opened.lines[-1])
        await opened.type("again\r")
        await opened.wait_for("writing…")
        await opened.type(CTRL_C)
        await opened.wait_for(STOPPED)
        await quit_by_ctrl_c(opened)


@pytest.mark.whole_terminal
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
async def test_nothing_that_a_model_says_reaches_the_terminal_as_a_control(screen, columns, rows):
    async with screen(
        scripted_services(ScriptedInference(answer("\n".join(CONTROLS)))), columns=columns, rows=rows
    ) as opened:
        await opened.wait_for(READY)
        mark = len(opened.sent)
        await opened.type("hi\r")
        await opened.wait_for(r"request \w+:")
        await opened.type(CTRL_T)
        await opened.wait_for("execution.end")
        assert "␛]0;owned␇" in opened.text
        # The one string for the operating system is the shape of the mouse pointer.
        sent = re.sub(r"\x1b\]22;[a-z-]*\x07", "", opened.sent[mark:])
        assert "\x1b]" not in sent
        assert not {"\x9b", "\x07", "\b", "\u202e"} & set(sent)
        await opened.type(CTRL_Q)
        assert await opened.end() == 0
        assert opened.is_restored()


@pytest.mark.whole_terminal
async def test_ctrl_c_ends_it_at_its_start_and_over_another_screen(screen):
    async with screen() as opened:
        await opened.wait_until(lambda: "\x1b[?1049h" in opened.sent)
        await opened.type(CTRL_C + CTRL_C)
        assert await opened.end() in (0, 130)
        assert opened.is_restored()
    async with screen() as opened:
        await opened.wait_for(READY)
        await opened.type(CTRL_G)
        await opened.wait_for("options of the next messages")
        await quit_by_ctrl_c(opened)


@pytest.mark.whole_terminal
async def test_ctrl_c_ends_it_where_there_are_no_services(screen):
    async with screen(address=f"127.0.0.1:{free_ports(1)[0]}") as opened:
        await opened.wait_for("pagantic up")
        await opened.type("hi\r")
        await asyncio.sleep(0.3)
        await quit_by_ctrl_c(opened)


@pytest.mark.whole_terminal
async def test_ctrl_q_leaves_an_answer_that_goes_on(screen):
    inference = Paused()
    async with screen(scripted_services(inference)) as opened:
        await opened.wait_for(READY)
        await opened.type("hi\r")
        await opened.wait_for("first half,")
        await opened.type(CTRL_Q)
        assert await opened.end() == 0
        assert opened.is_restored()
        request_id = re.search("the answer goes on: `pagantic show (.*?)`", opened.sent)[1]
        inference.may_go_on.set()
        for _ in range(200):
            execution = await get_execution(opened.world, request_id)
            if execution.HasField("response"):
                break
            await asyncio.sleep(0.02)
        assert execution.state.current == execution_pb2.LIFECYCLE_STATE_COMPLETE
        assert execution.response.content == "first half, second half"


@pytest.mark.whole_terminal
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_it_with_the_terminal_as_it_was(screen, sign):
    async with screen(scripted_services(ScriptedInference(None))) as opened:
        await opened.wait_for(READY)
        await opened.type("hi\r")
        await opened.wait_for("partial")
        opened.process.send_signal(sign)
        assert await opened.end() == 128 + sign
        assert opened.is_restored()


async def get_execution(world, request_id):
    reply = await world.stub.GetExecution(pb.GetExecutionRequest(request_id=request_id))
    return reply.execution


@pytest.mark.whole_terminal
async def test_without_a_whole_terminal_it_prints_the_help(screen):
    done = await asyncio.to_thread(subprocess.run, [PAGANTIC], capture_output=True, text=True, check=False)
    assert "Usage: pagantic" in done.stdout + done.stderr
    async with screen(term="dumb") as opened:
        await opened.wait_for("Exit codes: 0 success")
        assert "\x1b[?1049h" not in opened.sent
