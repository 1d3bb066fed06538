"""How well each scorer orders what BM25 found: `python -m tests.bench.rerank`, with a running system.

For each question of the Cranfield collection the candidates are the best abstracts by BM25. The scorers that ask a
model for each chunk order those of a sample of the questions. The weights of fusions are chosen on the questions with
odd numbers; every figure that is printed is of the even ones. PAGANTIC_SUITES names the folder of the collection.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import ir_measures
from ir_measures import R, nDCG

from pagantic.common.v1 import chunk_pb2
from pagantic.rerank.v1 import rerank_service_pb2 as pb
from pagantic.rerank.v1 import rerank_service_pb2_grpc as pb_grpc
from pagantic_common.codec.chunks import chunk_from_proto
from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.defaults import local_address
from pagantic_common.domain.text.ranking import Fusion
from services.context.core.document import CollectionOptions
from services.context.core.policy import RetrievalPolicy
from services.context.core.search.collection_index import CollectionIndex, IndexChanges, IndexedChunk, IndexedDocument
from services.context.core.search.terms import content_digest, count_terms, query_term_ids
from services.context.core.searching import Query, find_best
from services.rerank.core.policy import RerankPolicy, WeightedScorer
from services.rerank.core.selection import Column, best_first, rescored
from tests.bench import cranfield

LANGUAGE = "english"
FAST = ("retriever", "bm25", "keyword", "embedding")
SLOW = ("likelihood", "judge")
MEASURES = (nDCG @ 10, R @ 10)
CALL_S = 3600
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Scores = dict[str, list[float]]  # by scorer, one for each candidate


def main() -> None:
    """Print the figures of each scorer, and of the best fusions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default=local_address("rerank"), help="host:port of the rerank service")
    parser.add_argument("--sample", type=int, default=40, help="questions for the scorers that ask for each chunk")
    parser.add_argument("--candidates", type=int, default=50, help="abstracts of a question that are ordered")
    parser.add_argument("--cache", type=Path, help="file of scores, which a later run does not ask for again")
    options = parser.parse_args()
    candidates = find_candidates(options.candidates)
    scores: dict[str, Scores] = {}
    if options.cache is not None and options.cache.is_file():
        scores = json.loads(options.cache.read_text(encoding="utf-8"))
    asyncio.run(_score_all(options.address, candidates, options.sample, scores, options.cache))
    sampled = [number for number, by_scorer in scores.items() if by_scorer.keys() >= {*FAST, *SLOW}]
    _report("all questions", FAST, candidates, scores, list(scores))
    if sampled:
        _report(f"a sample of {len(sampled)} questions", (*FAST, *SLOW), candidates, scores, sampled)


def find_candidates(count: int) -> dict[str, list[Chunk]]:
    """Return the best abstracts of each question by BM25."""
    texts = list(cranfield.documents().items())
    changes = IndexChanges(
        (1, 1),
        CollectionOptions("", LANGUAGE),
        is_whole=True,
        documents=[IndexedDocument(place, number.encode(), b"") for place, (number, _) in enumerate(texts)],
        chunks=[
            IndexedChunk(place, place, content_digest(text), count_terms(text, LANGUAGE))
            for place, (_, text) in enumerate(texts)
        ],
    )
    index = CollectionIndex(changes.options).apply(changes)
    found = {}
    for number, question in cranfield.queries().items():
        hits = find_best(
            index, [Query(query_term_ids(question, LANGUAGE))], RetrievalPolicy("docs"), count, index.alive
        )
        found[number] = [Chunk(*texts[hit.chunk_id], texts[hit.chunk_id][0], hit.score, "bm25") for hit in hits]
    return found


async def _score_all(
    address: str, candidates: dict[str, list[Chunk]], sample: int, known: dict[str, Scores], cache: Path | None
) -> None:
    """Add the scores that are not known yet, and print how long they took."""
    questions = cranfield.queries()
    seconds: dict[str, list[float]] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        stub: pb_grpc.RerankServiceAsyncStub = pb_grpc.RerankServiceStub(channel)
        for number, scorer in _work(list(candidates), sample):
            scores = known.setdefault(number, {})
            if scorer in scores:
                continue
            started_s = time.perf_counter()
            scores[scorer] = await _score(stub, questions[number], candidates[number], scorer)
            seconds.setdefault(scorer, []).append(time.perf_counter() - started_s)
            if cache is not None:
                cache.write_text(json.dumps(known), encoding="utf-8")  # noqa: ASYNC240 - nobody waits meanwhile
    for scorer, took in seconds.items():
        sys.stdout.write(f"{scorer}: {sum(took) / len(took):.3f} s for a question\n")


def _work(numbers: Sequence[str], sample: int) -> Iterator[tuple[str, str]]:
    """Yield questions with scorers; the sampled questions are as often odd as even."""
    yield from itertools.product(numbers, FAST)
    if sample:
        step = len(numbers) // sample | 1
        yield from itertools.product(numbers[::step][:sample], SLOW)


async def _score(
    stub: pb_grpc.RerankServiceAsyncStub, question: str, chunks: Sequence[Chunk], scorer: str
) -> list[float]:
    sent = [
        chunk_pb2.Chunk(id=str(place), content=chunk.content, source=chunk.source, score=chunk.score)
        for place, chunk in enumerate(chunks)
    ]
    reply = await stub.Rerank(pb.RerankRequest(query=question, chunks=sent, scorer=scorer), timeout=CALL_S)
    by_place = {int(chunk.id): chunk.score for chunk in map(chunk_from_proto, reply.chunks)}
    return [by_place[place] for place in range(len(chunks))]


def _report(
    title: str,
    scorers: Sequence[str],
    candidates: dict[str, list[Chunk]],
    scores: dict[str, Scores],
    numbers: Sequence[str],
) -> None:
    odd, even = ([number for number in numbers if int(number) % 2 == rest] for rest in (1, 0))
    sys.stdout.write(f"\n{title}: {len(odd)} odd ones choose the weights, {len(even)} even ones are measured\n")
    sys.stdout.write("| scorers | nDCG@10 | R@10 |\n|---|---|---|\n")

    def measured(policy: RerankPolicy, among: Sequence[str]) -> tuple[float, ...]:
        run = [
            ir_measures.ScoredDoc(number, chunk.source, -place)
            for number in among
            for place, chunk in enumerate(ordered(candidates[number], scores[number], policy))
        ]
        relevant = [one for one in cranfield.judgements() if one.query_id in set(among)]
        found = ir_measures.calc_aggregate(MEASURES, relevant, run)
        return tuple(found[measure] for measure in MEASURES)

    for scorer in scorers:
        _print_row(scorer, measured(RerankPolicy((WeightedScorer(scorer),)), even))
    for pair in itertools.combinations(scorers, 2):
        for fusion in Fusion:
            best = max(_fusions(pair, fusion), key=lambda policy: measured(policy, odd)[0])
            shares = " + ".join(f"{one.weight:g} {one.name}" for one in best.scorers)
            _print_row(f"{shares}, {fusion.value}", measured(best, even))


def ordered(chunks: Sequence[Chunk], scores: Scores, policy: RerankPolicy) -> list[Chunk]:
    """Return the chunks in the order of the service, by scores that it gave."""
    columns = [Column(scorer, scores[scorer.name]) for scorer in policy.scorers]
    return best_first(rescored(chunks, columns, policy), policy)


def _fusions(pair: Sequence[str], fusion: Fusion) -> list[RerankPolicy]:
    first, second = pair
    return [
        RerankPolicy((WeightedScorer(first, 1 - share), WeightedScorer(second, share)), fusion=fusion)
        for share in SHARES
    ]


def _print_row(name: str, values: Sequence[float]) -> None:
    sys.stdout.write(f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} |\n")


if __name__ == "__main__":
    main()
