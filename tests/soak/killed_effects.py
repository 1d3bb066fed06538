"""`python -m tests.soak.killed_effects [--kills N]`: an orchestrator is killed between an effect's record and result.

Plans of three calls have effects in a ledger: of a tool that is idempotent, a tool that says what became of a lost
call, and a tool that can do neither. It prints how many effects happened twice, were lost silently, or are unknown.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import grpc

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.client import plan_request, plan_step
from tests.support.ports import free_ports

TOOLS = ("steady", "knowing", "plain")
CALL_S = 0.25  # A call takes this time, and has its effect in the middle of it.
MODULE = '''
import os
import time
from pathlib import Path

from pagantic_common.tools import ToolContext, ToolNotRun, tool

LEDGER = Path(os.environ["KILLED_LEDGER"])


def ledger():
    return LEDGER.read_text().split() if LEDGER.exists() else []


def happen(effect_id):
    time.sleep({half_s})
    with LEDGER.open("a") as file:
        file.write(effect_id + "\\n")
    time.sleep({half_s})
    return effect_id


@tool(safety="external", idempotent=True)
def steady(context: ToolContext) -> str:
    """Does its work once for an effect id."""
    return context.effect_id if context.effect_id in ledger() else happen(context.effect_id)


@tool(safety="external")
def knowing(context: ToolContext) -> str:
    """Knows what it has done."""
    return happen(context.effect_id)


@knowing.outcome
def _(effect_id: str) -> str:
    if effect_id not in ledger():
        raise ToolNotRun
    return effect_id


@tool(safety="external")
def plain(context: ToolContext) -> str:
    """Knows nothing of its past."""
    return happen(context.effect_id)
'''


class Killed:
    """A tools service that stays, an orchestrator that is killed, and what became of the effects."""

    def __init__(self, folder, random):
        self._folder, self._random = folder, random
        self._ports = dict(zip(("orchestrator", "tools", "nobody"), free_ports(3), strict=True))
        self.outcomes = Counter()
        self.kills = 0
        nobody = f"127.0.0.1:{self._ports['nobody']}"
        (folder / "effects.py").write_text(MODULE.replace("{half_s}", str(CALL_S / 2)))
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PAGANTIC_")},
            "KILLED_LEDGER": str(folder / "ledger"),
            "PAGANTIC_SETTINGS_FILE": "none",
            "PAGANTIC_TOOLS_MODULES": str(folder / "effects.py"),
            "PAGANTIC_TOOLS_PORT": str(self._ports["tools"]),
            "PAGANTIC_ORCHESTRATOR_PORT": str(self._ports["orchestrator"]),
            "PAGANTIC_ORCHESTRATOR_TOOLS_ADDRESS": f"127.0.0.1:{self._ports['tools']}",
            "PAGANTIC_ORCHESTRATOR_JOURNAL_URL": f"sqlite:///{folder / 'journal.sqlite3'}",
            **{
                f"PAGANTIC_ORCHESTRATOR_{area}_ADDRESS": nobody
                for area in ("INFERENCE", "CONSTRAINT", "CONTEXT", "RERANK")
            },
        }

    def start(self, area):
        with (self._folder / f"{area}.log").open("a") as log:
            command = [sys.executable, "-P", "-m", f"services.{area}"]
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    async def live(self, kills):
        """Run requests until the orchestrator was killed so often, and read what became of each call."""
        tools, orchestrator = self.start("tools"), self.start("orchestrator")
        try:
            await self._ready("tools")
            for number in range(1, 10 * kills):
                steps = [plan_step(name, "tool", tool=name, arguments={}) for name in TOOLS]
                for made in steps:
                    made.input.raw_json = "{}"
                request = plan_request("Pay.", steps, tools=TOOLS)
                request.request_id = f"r{number}"
                request.hints.timeout.FromSeconds(300)
                calling = asyncio.create_task(self._call(request))
                await self._ready("orchestrator")
                await asyncio.sleep(0.05 + self._random.random() * (len(TOOLS) * CALL_S + 0.2))
                if not calling.done():
                    self.kills += 1
                    orchestrator.send_signal(signal.SIGKILL)
                    await asyncio.to_thread(orchestrator.wait)
                    orchestrator = self.start("orchestrator")
                await calling
                self._count(await self._response(request))
                if self.kills >= kills:
                    return
        finally:
            for process in (orchestrator, tools):
                process.terminate()
                await asyncio.to_thread(process.wait)

    async def _ready(self, area):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._ports[area]}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)

    async def _call(self, request):
        try:
            await self._execute(request)
        except grpc.RpcError:
            return

    async def _response(self, request):
        """Send the request again until it has ended."""
        until_s = time.monotonic() + 60
        while True:
            try:
                return await self._execute(request)
            except grpc.RpcError as error:
                if time.monotonic() > until_s:
                    raise
                self.outcomes[f"sent again after {error.code().name}"] += 1
                await asyncio.sleep(0.1)

    async def _execute(self, request):
        address = f"127.0.0.1:{self._ports['orchestrator']}"
        async with grpc.aio.insecure_channel(address) as channel:
            return await rpc.OrchestratorServiceStub(channel).Execute(request, timeout=60, wait_for_ready=True)

    def _count(self, response):
        ledger = self._folder / "ledger"
        happened = Counter(ledger.read_text().split() if ledger.exists() else ())
        if not response.tool_calls_made:
            self.outcomes[f"no call: {response.error.message}"] += 1
        for record in response.tool_calls_made:
            outcome = "done" if not record.is_error else error_pb2.ErrorCode.Name(record.error_code)
            self.outcomes[f"{record.name}: {outcome.removeprefix('ERROR_CODE_')}"] += 1
            if not record.is_error and happened[record.result] != 1:
                self.outcomes[f"{record.name}: LOST WITHOUT A WORD"] += 1
        self.outcomes["effects that happened twice"] = sum(count > 1 for count in happened.values())


async def run(kills):
    with tempfile.TemporaryDirectory(prefix="pagantic-effects-") as folder:
        killed = Killed(Path(folder), Random(1))  # noqa: S311 - moments that can be had again
        started_s = time.monotonic()
        await killed.live(kills)
        sys.stdout.write(f"{killed.kills} kills in {time.monotonic() - started_s:.0f} s\n")
        for outcome, count in sorted(killed.outcomes.items()):
            sys.stdout.write(f"  {count:5} {outcome}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    asyncio.run(run(parser.parse_args().kills))


if __name__ == "__main__":
    main()
