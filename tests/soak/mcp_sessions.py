"""`python -m tests.soak.mcp_sessions`: calls of the MCP server, many of them refused, aborted or of deleted sessions.

The server is a process of its own in front of an orchestrator that answers at once, or never. It asserts nothing: it
prints what was called, and what is left: sessions, streams, tasks, descriptors and memory with its slope.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from random import Random

import httpx
import psutil

from gateway.mcp.http.app import McpApp
from gateway.mcp.server import open_server
from gateway.mcp.settings import McpSettings
from gateway.web.serving import returning_freed_memory
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.program import trim_heap
from pagantic_common.testing.server import serving
from tests.support.doors import open_to_all
from tests.support.mcp_app import LEGACY, MODERN, call, initialize, serving_app

ORCHESTRATOR = "pagantic.orchestrator.v1.OrchestratorService"
HUNG_S = 30.0
SAMPLES = 10
WARM_UP_SHARE = 0.1
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Orchestrator(rpc.OrchestratorServiceServicer):
    """Answers every request at once, but for one that says `wait`: that streams a word, and never ends."""

    def __init__(self):
        self.running = 0

    async def ExecuteStream(self, request, context):
        self.running += 1
        try:
            yield event_pb2.ExecutionEvent(sequence=1, content_delta=event_pb2.ContentDelta(text="hello"))
            if request.messages[-1].content == "wait":
                await asyncio.Event().wait()
            response = execution_pb2.SystemResponse(request_id=request.request_id, content="hello")
            yield event_pb2.ExecutionEvent(sequence=2, completed=event_pb2.Completed(response=response))
        finally:
            self.running -= 1

    def registration(self):
        name = pb.DESCRIPTOR.services_by_name["OrchestratorService"].full_name
        return Registration(
            name, lambda server: rpc.add_OrchestratorServiceServicer_to_server(self, server), open_to_all(name)
        )


async def serve(address):
    """Serve, and answer each line on stdin with what is open."""
    settings = McpSettings(drain_s=0, max_sessions=100_000, max_calls=10_000, max_streams=10_000)
    async with open_server(settings, address) as (server, callers):
        app = McpApp(server, settings, callers, session_idle_s=86_400)
        async with app.running(), returning_freed_memory(), serving_app(app, settings) as url:
            say(url)
            while await asyncio.to_thread(sys.stdin.readline):
                gc.collect()
                # The server trims its heap twice a minute, so free memory does not count.
                trim_heap()
                counts = {
                    "blocks": sys.getallocatedblocks(),  # Python's memory, in any kind of object
                    "sessions": app.sessions.count,
                    "streams": app.entry.request_count,
                    "tasks": len(asyncio.all_tasks()),
                }
                say(json.dumps(counts))


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Server:
    """The server's process."""

    def __init__(self, process, url):
        self.process = process
        self.url = url
        self._watched = psutil.Process(process.pid)

    async def counts(self):
        """Return what is open."""
        self.process.stdin.write(b"count\n")
        await self.process.stdin.drain()
        counts = json.loads(await self.process.stdout.readline())
        return counts | {"descriptors": self._watched.num_fds(), "threads": self._watched.num_threads()}

    def memory_mib(self):
        return self._watched.memory_info().rss / 2**20


@contextlib.asynccontextmanager
async def started(address):
    """Start a server in front of an orchestrator, and stop it afterwards."""
    command = (sys.executable, "-m", "tests.soak.mcp_sessions", "--serve", address)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Server(process, (await process.stdout.readline()).decode().strip())
    finally:
        process.kill()
        await process.wait()


class Caller:
    """One client: it makes one kind of call after another."""

    def __init__(self, url, seed):
        limits = httpx.Limits(max_connections=4, max_keepalive_connections=1)
        self.http = httpx.AsyncClient(limits=limits, timeout=HUNG_S)
        self.url = url
        self.random = Random(seed)  # noqa: S311 - a load that can be made again
        self.ids = itertools.count(1)
        self.session = ""

    def headers(self, session="", version=LEGACY, **more):
        made = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        made["mcp-protocol-version"] = version
        if session:
            made["mcp-session-id"] = session
        return made | more

    async def post(self, message, status=200, **headers):
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        response = await self.http.post(self.url, content=body, headers=self.headers(**headers))
        if response.status_code != status:
            raise RuntimeError(f"{response.status_code} instead of {status}: {response.text[:200]}")
        return response

    async def open(self):
        opened = await self.post(initialize())
        session = opened.headers["mcp-session-id"]
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, 202, session=session)
        return session

    def ask(self, words, token=None):
        return call("ask", {"question": words}, request_id=next(self.ids), token=token)

    async def call_in_session(self):
        self.session = self.session or await self.open()
        await self.post(self.ask("hello"), session=self.session)

    async def call_alone(self):
        await self.post(self.ask("hello"))

    async def call_modern(self):
        message = self.ask("hello")
        message["params"]["_meta"] = MODERN_META
        await self.post(message, version=MODERN, **{"mcp-method": "tools/call", "mcp-name": "ask"})

    async def be_refused(self):
        self.session = self.session or await self.open()
        refusals = (
            lambda: self.post(self.ask("hello"), 404, session="unknown"),
            lambda: self.post(self.ask("hello"), 403, origin="http://evil.example"),
            lambda: self.post(self.ask("hello"), 421, host="evil.example"),
            lambda: self.post(b"{", 400, session=self.session),
            lambda: self.post(b"[]", 400),
            lambda: self.post({"jsonrpc": "2.0", "id": next(self.ids), "method": "no/method"}, session=self.session),
            lambda: self.post({**initialize(), "params": {}}),
            lambda: self.post(b"[" * 2000, 400),
            lambda: self.post(initialize(), 406, accept="text/html"),
            lambda: self.post(b'"' + b"x" * 1024 * 1024 + b'"', 413),
        )
        await self.random.choice(refusals)()

    async def abort(self):
        """Leave in mid-stream, in a session, alone or on the modern wire."""
        message, headers = self.ask("wait", token=1), {}
        kind = self.random.randrange(3)
        if kind == 0:
            self.session = self.session or await self.open()
            headers = {"session": self.session}
        elif kind == 1:
            message["params"]["_meta"] |= MODERN_META
            headers = {"version": MODERN, "mcp-method": "tools/call", "mcp-name": "ask"}
        body = json.dumps(message)
        async with self.http.stream("POST", self.url, content=body, headers=self.headers(**headers)) as response:
            async for _line in response.aiter_lines():
                return

    async def delete(self):
        """Delete a session, with a call in it half of the time."""
        session = await self.open()
        calling = None
        if self.random.random() < 0.5:
            calling = asyncio.create_task(self.post(self.ask("wait"), session=session))
            await asyncio.sleep(0)
        deleted = await self.http.delete(self.url, headers=self.headers(session))
        if deleted.status_code != 200:
            raise RuntimeError(f"DELETE gave {deleted.status_code}: {deleted.text[:200]}")
        if calling is not None:
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                await calling

    async def close(self):
        if self.session:
            await self.http.delete(self.url, headers=self.headers(self.session))
        await self.http.aclose()


# Ten calls: seven that are answered, and one of each that is not.
ROUND = (
    *(Caller.call_in_session,) * 4,
    Caller.call_alone,
    *(Caller.call_modern,) * 2,
    Caller.be_refused,
    Caller.abort,
    Caller.delete,
)


class Load:
    """Counts calls and their failures."""

    def __init__(self, callers):
        self.callers = callers
        self.made, self.failed = Counter(), Counter()

    async def run(self, calls):
        await asyncio.gather(*(self._keep_calling(caller, calls // len(self.callers)) for caller in self.callers))

    async def _keep_calling(self, caller, calls):
        for number in range(calls):
            make = ROUND[number % len(ROUND)]
            self.made[make.__name__] += 1
            try:
                await asyncio.wait_for(make(caller), HUNG_S)
            except TimeoutError:
                self.failed[f"{make.__name__}: hung for {HUNG_S:g} s"] += 1
            except (httpx.HTTPError, RuntimeError) as error:
                self.failed[f"{make.__name__}: {type(error).__name__} {error}"] += 1


async def measure(calls, clients):
    orchestrator = Orchestrator()
    async with serving([orchestrator.registration()]) as (_, address), started(address) as server:
        load = Load([Caller(server.url, seed) for seed in range(clients)])
        await load.run(int(calls * WARM_UP_SHARE))
        before = await server.counts()
        samples = [(0, server.memory_mib())]
        say(f"after a warm-up: {samples[0][1]:.1f} MiB, {before}")
        for part in range(1, SAMPLES + 1):
            begun_s = time.monotonic()
            await load.run(calls // SAMPLES)
            rate = calls / SAMPLES / (time.monotonic() - begun_s)
            counts = await server.counts()
            samples.append((part * calls // SAMPLES, server.memory_mib()))
            say(f"{samples[-1][0]:8} calls: {samples[-1][1]:.1f} MiB, {rate:.0f} calls/s, {counts}")
        for caller in load.callers:
            await caller.close()
        await asyncio.sleep(1)
        report(load, samples, await server.counts(), orchestrator)


def report(load, samples, left, orchestrator):
    say(f"made: {dict(load.made)}")
    say(f"failed: {sum(load.failed.values())}")
    for reason, count in load.failed.most_common():
        say(f"  {count:6} {reason}")
    slope = statistics.linear_regression([at for at, _ in samples], [memory for _, memory in samples]).slope
    say(f"memory: {samples[-1][1] - samples[0][1]:+.1f} MiB, {slope * 10_000:+.2f} MiB for 10,000 calls")
    say(f"left when every client has gone: {left}, executions {orchestrator.running}")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak.mcp_sessions", description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--serve", metavar="ADDRESS", default="", help="be the server, before this orchestrator")
    options = parser.parse_args()
    asyncio.run(serve(options.serve) if options.serve else measure(options.calls, options.clients))


if __name__ == "__main__":
    main()
