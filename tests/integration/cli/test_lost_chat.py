"""`pagantic chat` before a real orchestrator: its connection is lost, and somebody stops it."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AnswerState, AsyncClient, DeltaKind, chat_request
from pagantic_common.rpc.call import call_unary
from services.orchestrator.core.model.response import InferenceDelta
from tests.support.orchestrator_app import ended, leave, orchestrator
from tests.support.relay import relaying
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

TIME_S = "5"  # A busy machine has begun the answer in this time.
PIECES = [f"piece {number}, " for number in range(6)]
# A run of the tests in the background ignores SIGINT, and so would what it starts.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from gateway.entry import main; main()"
)


class Paced(ScriptedInference):
    """Streams its answer in pieces, and after each one waits until it may go on."""

    def __init__(self):
        super().__init__(answer("".join(PIECES)))
        self.may_send = asyncio.Semaphore(0)

    async def infer(self, command, hints):
        yield InferenceDelta()
        for piece in PIECES:
            await self.may_send.acquire()
            yield InferenceDelta(piece)
        yield self.outputs[0]

    def go_on(self, pieces):
        for _ in range(pieces):
            self.may_send.release()


class Chat:
    """A command that runs, and what it has printed."""

    def __init__(self, process):
        self.process = process
        self.out = self.err = ""
        self._reading = [
            asyncio.create_task(self._read("stdout", "out")),
            asyncio.create_task(self._read("stderr", "err")),
        ]

    async def _read(self, stream, shown):
        while data := await getattr(self.process, stream).read(65536):
            setattr(self, shown, getattr(self, shown) + data.decode())

    async def until(self, shows):
        async with asyncio.timeout(30):
            while not shows(self):  # noqa: ASYNC110 - the program that prints is another process
                await asyncio.sleep(0.01)

    async def end(self):
        async with asyncio.timeout(30):
            code = await self.process.wait()
            await asyncio.gather(*self._reading)
        return code


@pytest.fixture
def chatting(tmp_path):
    @asynccontextmanager
    async def start(*options, address):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, "chat", "hi", "--request-id", "r", *options),
            env=os.environ | {"PAGANTIC_ADDRESS": address, "XDG_STATE_HOME": str(tmp_path / "state")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield Chat(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return start


async def test_an_answer_whose_connection_is_lost_twice_is_whole_and_has_nothing_twice(tmp_path, chatting):
    inference = Paced()
    async with (
        orchestrator(tmp_path, scripted_services(inference)) as stub,
        relaying(stub.address) as relay,
        chatting(address=relay.address) as chat,
    ):
        inference.go_on(3)
        await chat.until(lambda it: "piece 2" in it.out)
        for lost in (1, 2):
            relay.reset()
            await chat.until(lambda it, lost=lost: it.err.count("the connection was lost") == lost)
            inference.go_on(1)
            await chat.until(lambda it, lost=lost: f"piece {2 + lost}" in it.out)
        inference.go_on(1)
        code = await chat.end()
    assert (chat.out, code) == ("".join(PIECES) + "\n", 0)


@asynccontextmanager
async def restarting(tmp_path, inference):
    """Give a relay to an orchestrator, and a function that replaces this as if its process had died."""
    async with AsyncExitStack() as running:
        stub = await running.enter_async_context(orchestrator(tmp_path, scripted_services(inference)))
        relay = await running.enter_async_context(relaying(stub.address))

        async def restart(inference_after):
            relay.cut()
            leave(tmp_path, tmp_path / "left")
            services = scripted_services(inference_after)
            again = orchestrator(tmp_path / "left", services, presence={"resumes_plans": True})
            relay.target = (await running.enter_async_context(again)).address
            relay.mend()

        yield relay, restart


async def test_an_answer_whose_orchestrator_dies_begins_again_on_a_line_of_its_own(tmp_path, chatting):
    first, second = Paced(), Paced()
    async with restarting(tmp_path, first) as (relay, restart), chatting(address=relay.address) as chat:
        first.go_on(2)
        await chat.until(lambda it: "piece 1" in it.out)
        await restart(second)
        second.go_on(len(PIECES))
        code = await chat.end()
    assert (chat.out, code) == (f"{PIECES[0]}{PIECES[1]}\n{''.join(PIECES)}\n", 0)
    assert "the orchestrator has resumed the request; the answer begins again" in chat.err


async def test_a_program_follows_an_execution_whose_connection_is_lost_and_whose_orchestrator_dies(tmp_path):
    first, second, losses, answer = Paced(), Paced(), [], AnswerState()
    async with (
        restarting(tmp_path, first) as (relay, restart),
        AsyncClient(relay.address) as client,
        aclosing(client.follow_to_end(chat_request("hi", request_id="r"), on_lost=losses.append)) as events,
    ):
        first.go_on(2)
        async for event in events:
            answer.take(event)
            if answer.text == "".join(PIECES[:2]):
                break
        relay.reset()
        first.go_on(1)
        while answer.text != "".join(PIECES[:3]):
            answer.take(await anext(events))
        await restart(second)
        news = []
        async for event in events:
            second.go_on(event.HasField("resumed") and len(PIECES))
            news += [delta.kind for delta in answer.take(event)]
    assert len(losses) == 2
    assert (answer.text, answer.response.content) == ("".join(PIECES), "".join(PIECES))
    assert news == [DeltaKind.REPEATED, *[DeltaKind.TEXT] * len(PIECES)]


async def test_a_program_that_leaves_has_its_execution_stopped(tmp_path):
    inference = Paced()
    async with orchestrator(tmp_path, scripted_services(inference)) as stub, AsyncClient(stub.address) as client:
        inference.go_on(1)
        async with aclosing(client.follow_to_end(chat_request("hi", request_id="r"))) as events:
            async for event in events:
                if event.HasField("content_delta"):
                    break
        execution = await ended(stub, "r")
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_stops_the_answer_though_it_runs_in_the_background(tmp_path, chatting, number, exit_code):
    inference = Paced()
    async with (
        orchestrator(tmp_path, scripted_services(inference)) as stub,
        chatting("--session", "s", address=stub.address) as chat,
    ):
        inference.go_on(1)
        await chat.until(lambda it: "piece 0" in it.out)
        chat.process.send_signal(number)
        code = await chat.end()
        execution = await ended(stub, "r")
        kept = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    assert code == exit_code
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
    assert [(message.content, message.cut) for message in kept.session.messages] == [("hi", False), (PIECES[0], True)]


async def test_an_answer_whose_time_is_up_ends_though_it_runs_in_the_background(tmp_path, chatting):
    inference = Paced()
    async with (
        orchestrator(tmp_path, scripted_services(inference)) as stub,
        chatting("--timeout", TIME_S, address=stub.address) as chat,
    ):
        inference.go_on(1)
        code = await chat.end()
        execution = await ended(stub, "r")
    assert code == 8
    assert "CANCELLED_TIMEOUT" in chat.err
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
    assert chat.out == PIECES[0] + "\n"
