"""The example clients before an orchestrator in this process: lost connections, hostile answers, and refusals."""

import asyncio
import os
import re
import signal
import sys

import pytest

from pagantic_common.domain.errors import Overloaded
from services.orchestrator.core.model.response import InferenceDelta
from tests.support.client_programs import BUILD_S, LANGUAGES, skip_unless_sampled
from tests.support.orchestrator_app import orchestrator
from tests.support.relay import relaying
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

# The first test of a language may build its client.
pytestmark = pytest.mark.timeout(BUILD_S + 120)
# A run of the tests in the background ignores SIGINT, and so would what it starts.
WITH_INTERRUPTS = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
)
NOWHERE = "127.0.0.1:9"
PIECES = [f"piece {number}, " for number in range(12)]
HOSTILE = (
    "red \x1b[31m title \x1b]0;owned\x07 c1 \x9b2J bell \x07 back \x08 del \x7f ",
    "<script>alert()</script> é 猫",
)


class Paced(ScriptedInference):
    """Streams its answer in pieces, and after each one waits until it may go on."""

    def __init__(self, *pieces):
        super().__init__(answer("".join(pieces)))
        self.pieces = pieces
        self.may_send = asyncio.Semaphore(0)

    async def infer(self, command, hints):
        yield InferenceDelta()
        for piece in self.pieces:
            await self.may_send.acquire()
            yield InferenceDelta(piece)
        yield self.outputs[0]


class Running:
    """A command of the client, and what it has printed."""

    def __init__(self, process):
        self._process = process
        self.out = self.err = ""
        self._reading = [asyncio.create_task(self._read(name)) for name in ("stdout", "stderr")]

    async def _read(self, name):
        shown = {"stdout": "out", "stderr": "err"}[name]
        while data := await getattr(self._process, name).read(65536):
            setattr(self, shown, getattr(self, shown) + data.decode())

    async def until(self, shows):
        async with asyncio.timeout(30):
            while not shows(self):  # noqa: ASYNC110 - the program that prints is another process
                await asyncio.sleep(0.01)

    def interrupt(self):
        self._process.send_signal(signal.SIGINT)

    async def exit_code(self):
        async with asyncio.timeout(30):
            code = await self._process.wait()
            await asyncio.gather(*self._reading)
        return code


@pytest.fixture(autouse=True)
def sampled(request):
    skip_unless_sampled(request.node)


@pytest.fixture(scope="module", params=LANGUAGES, ids=lambda language: language.name)
def program(request):
    return request.param.command()


@pytest.fixture
async def start(program):
    """Start a command of the client; what still runs at the end of the test is killed."""
    processes = []

    async def start_command(*command, address, **environment):
        process = await asyncio.create_subprocess_exec(
            *WITH_INTERRUPTS,
            *program,
            *command,
            env=os.environ | {"PAGANTIC_ADDRESS": address, "PAGANTIC_TIMEOUT_S": "30", **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        return Running(process)

    yield start_command
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_an_answer_survives_two_lost_connections(start, tmp_path):
    inference = Paced(*PIECES)
    async with orchestrator(tmp_path, scripted_services(inference)) as stub, relaying(stub.address) as relay:
        running = await start("resume", "hi", address=relay.address)
        await running.until(lambda it: "request:" in it.err)
        for _ in range(5):
            inference.may_send.release()
        await running.until(lambda it: "follows:" in it.err)
        for _ in range(2):
            inference.may_send.release()
        await running.until(lambda it: "piece 6" in it.out)
        relay.reset()
        await running.until(lambda it: it.err.count("follows:") >= 2)
        for _ in PIECES[7:]:
            inference.may_send.release()
        assert await running.exit_code() == 0
    assert running.out == "".join(PIECES) + "\n"
    assert "lost: after event" in running.err


async def test_a_request_whose_connection_is_lost_before_its_first_event_is_sent_again(start, tmp_path):
    inference = Paced("hello")
    inference.may_send.release()
    async with orchestrator(tmp_path, scripted_services(inference)) as stub, relaying(NOWHERE) as relay:
        running = await start("resume", "hi", address=relay.address)
        await running.until(lambda it: "lost: after event 0" in it.err)
        relay.target = stub.address
        assert await running.exit_code() == 0
    assert running.out == "hello\n"


async def test_a_hostile_answer_is_shown_as_text(start, tmp_path):
    inference = Paced(*HOSTILE)
    for _ in HOSTILE:
        inference.may_send.release()
    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        running = await start("chat", "hi", address=stub.address)
        assert await running.exit_code() == 0
    assert running.out == re.sub(r"[\x00-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", "".join(HOSTILE)) + "\n"


async def test_a_refusal_says_when_to_come_back(start, tmp_path):
    inference = ScriptedInference(Overloaded("the queue is full", retry_after_s=2.5))
    async with orchestrator(tmp_path, scripted_services(inference), max_running=0) as stub:
        running = await start("chat", "hi", address=stub.address)
        assert await running.exit_code() == 7
    assert "from: status RESOURCE_EXHAUSTED" in running.err
    assert re.search(r"^retry after: \d+\.\d s$", running.err, re.MULTILINE)


async def test_a_caller_without_a_key_is_told_so(start, tmp_path):
    async with orchestrator(tmp_path, admin_keys=dict) as stub:
        running = await start("chat", "hi", address=stub.address)
        assert await running.exit_code() == 3
    assert "error: AUTH_MISSING" in running.err
    assert "category: ACCESS_FAILURE" in running.err


async def test_nobody_there_is_unavailable(start):
    running = await start("chat", "hi", address=NOWHERE, PAGANTIC_TIMEOUT_S="5")
    assert await running.exit_code() == 7
    assert "from: status UNAVAILABLE" in running.err


@pytest.mark.parametrize("address", ["http://:5", ":5", "https://:443"])
async def test_an_address_without_a_host_is_told_so(start, address):
    running = await start("chat", "hi", address=address)
    assert await running.exit_code() == 2
    assert running.err.splitlines() == ["client: PAGANTIC_ADDRESS has no host: call host:port or https://host:port"]


async def test_ctrl_c_stops_the_work(start, tmp_path):
    inference = Paced(*PIECES)
    inference.may_send.release()
    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        running = await start("chat", "hi", address=stub.address)
        await running.until(lambda it: "piece 0" in it.out)
        running.interrupt()
        assert await running.exit_code() in {130, -signal.SIGINT}
        assert "Traceback" not in running.err
        await running.until(lambda _: not stub.executions.registry.count)
