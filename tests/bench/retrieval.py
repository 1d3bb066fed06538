"""How well retrievers find what answers the queries of a collection: `python -m tests.bench.retrieval --inference A`.

A context service over an empty store takes the documents in, embeds them by the inference service at A, and is asked
each query by each retriever. A document ranks by its best chunk. Parameters may be chosen by Cranfield's queries of odd
numbers, and are reported for those of even numbers. For the other two collections, which `--tagged` measures after it,
nothing was chosen.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import ir_measures
from ir_measures import AP, R, ScoredDoc, nDCG

from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic_common.rpc.process.server import start_server
from services.context.__main__ import open_app
from services.context.settings import ContextSettings
from tests.bench.cranfield import Judged, cranfield
from tests.bench.tagged_pages import tagged_pages

MEASURES = (nDCG @ 10, AP, R @ 100)
DEPTH = 400  # chunks of one answer
BATCH = 200

_HYBRID, _RANKS = policy_pb2.RETRIEVER_HYBRID, policy_pb2.FUSION_RECIPROCAL_RANK
POLICIES: Mapping[str, Mapping[str, object]] = {
    "keyword": {"retriever": policy_pb2.RETRIEVER_KEYWORD},
    "bm25": {"retriever": policy_pb2.RETRIEVER_BM25},
    "vector": {"retriever": policy_pb2.RETRIEVER_VECTOR},
    "hybrid, reciprocal rank": {"retriever": _HYBRID, "fusion": _RANKS, "smoothing": 0.0},
    **{
        f"hybrid, {weight} of vectors": {"retriever": _HYBRID, "vector_weight": weight, "smoothing": 0.0}
        for weight in (0.4, 0.5, 0.6, 0.7)
    },
    **{f"hybrid, smoothing {weight}": {"retriever": _HYBRID, "smoothing": weight} for weight in (0.3, 0.5, 0.7)},
    "hybrid, diversity 0.2": {"retriever": _HYBRID, "diversity": 0.2, "max_chunks": 100},
}


def main() -> None:
    """Print a table of measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inference", default="127.0.0.1:50052", metavar="ADDRESS")
    parser.add_argument("--tagged", type=Path, metavar="FOLDER", help="data/semanlink of the package cherche.")
    options = parser.parse_args()
    collections = {"cranfield": cranfield()}
    if options.tagged:
        collections["tagged papers"] = tagged_pages(options.tagged, of_papers=True)
        collections["tagged pages"] = tagged_pages(options.tagged, of_papers=False)
    asyncio.run(_measure(options.inference, collections))


async def _measure(inference_address: str, collections: Mapping[str, Judged]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = ContextSettings(port=0, data_folder=Path(folder), inference_address=inference_address)
        async with open_app(settings) as registrations:
            server, _, port = await start_server(settings, registrations)
            try:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    context = context_service_pb2_grpc.ContextServiceStub(channel)  # type: ignore[no-untyped-call]
                    for title, judged in collections.items():
                        _say(f"\n{title}: {len(judged.documents)} documents, {len(judged.queries)} queries")
                        name = title.replace(" ", "-")
                        await _ingest(context, name, judged)
                        for label, policy in POLICIES.items():
                            await _report(context, name, judged, label, policy)
            finally:
                await server.stop(None)


async def _ingest(context: context_service_pb2_grpc.ContextServiceAsyncStub, name: str, judged: Judged) -> None:
    started_s = time.perf_counter()
    known = [collection_pb2.Document(source=source, content=text) for source, text in judged.documents.items()]
    for start in range(0, len(known), BATCH):
        request = context_service_pb2.IngestRequest(collection=name, documents=known[start : start + BATCH])
        stored = await context.Ingest(request)
    _say(f"{stored.collection.chunk_count} chunks stored in {time.perf_counter() - started_s:.1f} s")
    while True:
        listed = (await context.ListCollections(context_service_pb2.ListCollectionsRequest())).collections
        collection = next(one for one in listed if one.name == name)
        if collection.embedded_chunk_count == collection.chunk_count:
            break
        await asyncio.sleep(1)
    _say(f"embedded by {collection.embedding_model} after {time.perf_counter() - started_s:.1f} s")
    _say(f"{'':34} {'odd queries':^26}   {'even queries':^26}   {'all queries':^26}    ms")
    _say(f"{'':34} {'  '.join([f'{measure!s:>8}' for measure in MEASURES] * 3)}")


async def _report(
    context: context_service_pb2_grpc.ContextServiceAsyncStub,
    name: str,
    judged: Judged,
    label: str,
    fields: Mapping[str, object],
) -> None:
    policy = policy_pb2.ContextPolicy(collection=name, **{"max_chunks": DEPTH, **fields})  # type: ignore[arg-type]
    run: list[ScoredDoc] = []
    took_ms: list[float] = []
    for query_id, query in judged.queries.items():
        started_s = time.perf_counter()
        found = await context.Retrieve(context_service_pb2.RetrieveRequest(query=query, policy=policy))
        took_ms.append((time.perf_counter() - started_s) * 1000)
        order = list(dict.fromkeys(chunk.source for chunk in found.chunks))
        run += [ScoredDoc(query_id, source, float(-rank)) for rank, source in enumerate(order)]
    halves = (_is_odd, lambda number: not _is_odd(number), bool)
    cells = [_measures_of(judged, run, is_counted) for is_counted in halves]
    _say(f"{label:34} {'  '.join(cells)}  {statistics.median(took_ms):6.1f}")


def _is_odd(number: int) -> bool:
    return number % 2 == 1


def _measures_of(judged: Judged, run: list[ScoredDoc], is_counted: Callable[[int], bool]) -> str:
    wanted = [one for one in judged.judgements if is_counted(int(one.query_id))]
    found = [one for one in run if is_counted(int(one.query_id))]
    values = ir_measures.calc_aggregate(MEASURES, wanted, found)
    return "  ".join(f"{values[measure]:8.4f}" for measure in MEASURES)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
