"""`python -m tests.soak.turnover`: certificates and authorities of a real system are replaced while it works.

It asserts nothing: it prints how many requests were sent, and what failed. No request is sent a second time.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import grpc

from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.soak.honest import MODES, Talks, make_request
from tests.support.tls_system import TlsSystem

REPLACE_EVERY_S = 2.0
CALL_S = 60.0


async def keep_asking(stub, turnover, *, seconds, clients):
    """Send requests one after the other from each client meanwhile; returns how many ended well, and why others not."""
    answered, failed, end_s = 0, Counter(), time.monotonic() + seconds
    random, talks = Random(1), Talks(1)  # noqa: S311 - a load that can be made again

    async def ask():
        nonlocal answered
        while time.monotonic() < end_s:
            mode = random.choice(MODES)
            try:
                response = await stub.Execute(make_request(mode, random, talks), timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                failed[f"{error.code().name}: {error.details()}"] += 1
                continue
            if response.HasField("error"):
                failed[response.error.message] += 1
            else:
                answered += 1

    async def replace():
        while True:
            await asyncio.sleep(REPLACE_EVERY_S)
            await asyncio.to_thread(turnover.replace)

    replacing = asyncio.create_task(replace())
    await asyncio.gather(*(ask() for _ in range(clients)))
    replacing.cancel()
    return answered, failed


async def run(system, options):
    async with system.channel() as channel:
        stub = rpc.OrchestratorServiceStub(channel)
        return await keep_asking(stub, system.turnover, seconds=options.minutes * 60, clients=options.clients)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak.turnover", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagantic-turnover-") as folder:
        system = TlsSystem(Path(folder))
        try:
            system.run(sys.executable, "-m", "deploy.local", "up")
            system.ingest()
            answered, failed = asyncio.run(run(system, options))
        finally:
            system.run(sys.executable, "-m", "deploy.local", "down", check=False)
    sys.stdout.write(f"{system.turnover.count} replacements, {answered} answered, {sum(failed.values())} failed\n")
    for reason, count in failed.most_common():
        sys.stdout.write(f"  {count:5} {reason}\n")


if __name__ == "__main__":
    main()
