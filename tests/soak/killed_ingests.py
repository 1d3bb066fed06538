"""`python -m tests.soak.killed_ingests [--kills N]`: a context service is killed at random moments of its work.

It prints how many documents were acknowledged, and what was lost, half there or wrong after a start: nothing should be.
Documents are ingested and replaced meanwhile, and embedded in the background by a scripted inference service.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import grpc

from pagantic.context.v1 import collection_pb2, policy_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as rpc
from pagantic_common.domain.defaults import EMBEDDING_MODEL
from services.context.adapters.store.access import StoreAccess
from tests.support.embedding import serve_inference
from tests.support.ports import free_ports

COLLECTION = "killed"
WORDS = ("alpha", "beta", "gamma", "delta", "kappa", "omega")
SOURCES = 60
MAX_LIFE_S = 1.5
POLICY = policy_pb2.ContextPolicy(collection=COLLECTION)


class Killed:
    """A context service that is started and killed again and again, and what it acknowledged.

    Attributes:
        acknowledged: The mark that each document had when the service last acknowledged it.
        sent: The marks that were sent since then.
    """

    def __init__(self, folder, inference_address, random):
        self.acknowledged, self.sent = {}, {}
        self.problems, self.opened_s = [], []
        self._folder = folder
        self._random = random
        self.sent_count = 0
        (self._port,) = free_ports(1)
        self._environment = {
            **os.environ,
            "PAGANTIC_CONTEXT_PORT": str(self._port),
            "PAGANTIC_CONTEXT_DATA_FOLDER": str(folder),
            "PAGANTIC_CONTEXT_INFERENCE_ADDRESS": inference_address,
        }

    async def live_once(self):
        """Start, look whether all is there, work, and be killed."""
        self._measure_opening()
        process = self.start()
        async with self.connected() as context:
            await self.look(context)
            working = asyncio.create_task(self._work(context))
            await asyncio.sleep(self._random.random() * MAX_LIFE_S)
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def start(self):
        """Start the service; its log goes to a file."""
        with (self._folder / "log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "services.context"], env=self._environment, stdout=log, stderr=log
            )

    @asynccontextmanager
    async def connected(self):
        """Give a stub of the service once it answers."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
            yield rpc.ContextServiceStub(channel)

    async def look(self, context):
        """Note every acknowledged document that is not there as it was, and every difference from the texts."""
        if not self.acknowledged:
            return
        report = await context.Verify(pb.VerifyRequest(collection=COLLECTION, embedding_sample=16))
        self.problems += report.differences
        for source, mark in self.acknowledged.items():
            # A document that was sent again without an answer is there in any of these forms.
            query = " ".join((mark, *self.sent[source]))
            found = await context.Retrieve(pb.RetrieveRequest(query=query, policy=POLICY))
            if source not in {chunk.source for chunk in found.chunks}:
                self.problems.append(f"{source} with {mark} was acknowledged and is not there")

    async def until_embedded(self, context):
        """Wait for the background embedding, and return the collection."""
        while True:
            (collection,) = (await context.ListCollections(pb.ListCollectionsRequest())).collections
            if collection.embedded_chunk_count == collection.chunk_count:
                return collection
            await asyncio.sleep(0.2)

    async def _work(self, context):
        while True:
            request = pb.IngestRequest(collection=COLLECTION)
            marks = {}
            for number in self._random.sample(range(SOURCES), 3):
                self.sent_count += 1
                source, mark = f"document-{number}", f"mark{self.sent_count}"
                words = " ".join(self._random.choices(WORDS, k=self._random.randrange(20, 600)))
                request.documents.append(collection_pb2.Document(source=source, content=f"{mark}. {words}"))
                marks[source] = mark
            for source, mark in marks.items():
                self.sent.setdefault(source, []).append(mark)
            await context.Ingest(request)
            self.acknowledged |= marks
            self.sent |= {source: [] for source in marks}

    def _measure_opening(self):
        started_s = time.perf_counter()
        StoreAccess(f"sqlite:///{self._folder / 'context.sqlite3'}").close()
        self.opened_s.append(time.perf_counter() - started_s)


async def run(kills):
    async for inference_address in serve_inference(EMBEDDING_MODEL):
        with tempfile.TemporaryDirectory() as folder:
            killed = Killed(Path(folder), inference_address, Random(1))  # noqa: S311 - moments that can be had again
            for _ in range(kills):
                await killed.live_once()
            await report(killed)


async def report(killed):
    """Start once more, let the embedding end, and print what was seen."""
    process = killed.start()
    async with killed.connected() as context:
        collection = await killed.until_embedded(context)
        await killed.look(context)
    process.terminate()
    await asyncio.to_thread(process.wait)
    opened_s = killed.opened_s
    sys.stdout.write(
        f"{len(opened_s)} kills, {killed.sent_count} documents sent, {len(killed.acknowledged)} sources acknowledged, "
        f"{collection.chunk_count} chunks, all embedded; the store opens in {statistics.median(opened_s):.3f} s, "
        f"at most {max(opened_s):.3f} s\n{len(killed.problems)} problems\n"
    )
    for problem in killed.problems[:20]:
        sys.stdout.write(f"  {problem}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    asyncio.run(run(parser.parse_args().kills))


if __name__ == "__main__":
    main()
