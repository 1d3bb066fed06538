"""`python -m tests.soak.replicas`: whether replacing, killing and cutting off the parts of a system loses a call.

Every part is a process on a host of its own, a network namespace, so this needs root. The load is open: calls come by
chance at a rate, whether earlier ones have ended or not. A caller sends a request again when it is refused with
UNAVAILABLE, as the documentation says. The exit status is 1 if a call failed that may not, or if anything was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc
from pagantic_common.client import AsyncClient
from pagantic_common.rpc.channel import open_channel
from tests.soak.replicas.calls import CALL_S, COLLECTION, KINDS, Caller
from tests.soak.replicas.checks import check_calls, check_sessions, check_tool_runs
from tests.soak.replicas.database import replicated_database
from tests.soak.replicas.events import DEFAULTS, EVENTS, Stage, play
from tests.soak.replicas.hosts import Network, networked, why_not
from tests.soak.replicas.report import report
from tests.soak.replicas.system import System, address_of, say

ROOT = Path(__file__).parents[3]
MESSAGE_BYTES = 4 << 20
TERMINATED = 143
# The kernel ends all processes of a process namespace with the first of them, whatever they are to each other.
ENDS_TOGETHER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def counts_of(text):
    """Return how often each event happens, from `kill=3,zero=1`."""
    counts = {}
    for part in text.split(","):
        kind, _, count = part.partition("=")
        if kind not in EVENTS or not (count or "1").isdigit():
            raise argparse.ArgumentTypeError(f"{part!r}: write EVENT=COUNT, where EVENT is of {', '.join(EVENTS)}")
        counts[kind] = int(count or 1)
    return counts


def options_of():
    parser = argparse.ArgumentParser(prog="python -m tests.soak.replicas", description=__doc__)
    parser.add_argument("--events", type=counts_of, default=DEFAULTS, help="how often what happens: kill=3,zero=1")
    parser.add_argument("--rate", type=float, default=0.6, help="calls a second")
    parser.add_argument("--kinds", nargs="+", choices=sorted({*KINDS}), default=KINDS, help="kinds of calls")
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of load before the first event")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds after an event that still count for it")
    parser.add_argument("--patience", type=float, default=300.0, help="CONNECT_PATIENCE_S of the services")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="a folder for the logs of the services")
    parser.add_argument("--within", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


async def soak(options, system, database):
    """Load the system while events happen to it; return whether all was well."""
    stage = Stage(system, database, Random(options.seed), options.settle)  # noqa: S311
    async with AsyncClient(address_of("orchestrator"), timeout_s=CALL_S) as client:
        await ingest()
        caller, is_over = Caller(client, options.seed, options.kinds), asyncio.Event()
        load = asyncio.create_task(caller.load(options.rate, is_over))
        await asyncio.sleep(options.rest)
        try:
            happened = await asyncio.to_thread(play, stage, options.events)
        finally:
            is_over.set()
        await load
        faults = [line async for line in check_calls(client, caller.calls)]
        faults += [line async for line in check_sessions(client, caller.calls)]
    faults += [*check_tool_runs(system.runs_file, caller.calls), *system.problems]
    failed = report(caller.calls, happened)
    say(f"{len(failed)} calls failed that may not, {len(faults)} other faults")
    for fault in faults:
        say(f"  {fault}")
    return not failed and not faults


async def ingest():
    document = collection_pb2.Document(source="sea.txt", content="The sea is wide, and tells a long story.")
    request = context_service_pb2.IngestRequest(collection=COLLECTION, documents=[document])
    async with open_channel(address_of("context"), max_message_bytes=MESSAGE_BYTES) as channel:
        await context_service_pb2_grpc.ContextServiceStub(channel).Ingest(request, wait_for_ready=True, timeout=30)


def run_within(options):
    """Run on the host of the clients, and return the exit status."""
    prefix, folder = options.within
    network = Network(prefix, Path(folder), is_new=False)
    with replicated_database(network) as database:
        system = System(network, database.url, options.patience)
        system.start()
        events = ", ".join(f"{kind} {count}" for kind, count in options.events.items())
        say(f"{options.rate:g} calls a second; {events}")
        return 0 if asyncio.run(soak(options, system, database)) else 1


def run(options):
    """Make the network, run everything in it, and remove it."""
    if reason := why_not():
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    with networked("soak") as network:
        client = network.add_host("client", 4)
        again = [sys.executable, "-m", __spec__.name.removesuffix(".__main__"), *sys.argv[1:]]
        within = ["--within", network.prefix, str(network.folder)]
        environment = {**os.environ, "TMPDIR": str(network.folder)}  # so that it is removed, however it ends
        process = subprocess.Popen([*client.enters, *ENDS_TOGETHER, *again, *within], cwd=ROOT, env=environment)
        try:
            return process.wait()
        finally:
            process.kill()
            process.wait()
            keep_logs(options, network.folder)


def keep_logs(options, folder):
    if options.keep:
        Path(options.keep).mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            (Path(options.keep) / log.name).write_bytes(log.read_bytes())


def main():
    options = options_of()
    sys.exit(run_within(options) if options.within else run(options))


if __name__ == "__main__":
    main()
