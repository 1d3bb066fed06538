"""What asking the model adds to retrieval on Cranfield: `python -m tests.bench.model_retrieval`.

The services must run at the addresses of --orchestrator and --context. Answerability: each question is asked once about
an abstract that is judged relevant and once about a random one that is not; the labels of odd questions calibrate, and
those of even ones are reported. Query expansion: nDCG@10 of the hybrid search by the question alone, and with the
queries that the model writes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

import grpc
import ir_measures
from ir_measures import Qrel, ScoredDoc, nDCG

from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.client import Client, ask_request, chat_request, structured_request
from pagantic_common.codec.messages import message_to_proto
from pagantic_common.domain.text.calibration import (
    Calibration,
    Example,
    area_under_curve,
    brier_score,
    fit_calibration,
)
from services.orchestrator.core.conversation.query_writing import QueryPrompt, query_prompts
from services.orchestrator.core.model.retrieval import QueryExpansion
from tests.bench.cranfield import documents, judgements, queries

COLLECTION = "bench-cranfield"
BATCH = 200
DEPTH = 100
EXPANSIONS = {
    "the question": QueryExpansion(),
    "3 wordings": QueryExpansion(3),
    "a hypothetical document": QueryExpansion(has_hypothetical_document=True),
    "both": QueryExpansion(3, has_hypothetical_document=True),
}


def main() -> None:
    """Print the measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orchestrator", default="127.0.0.1:50051", metavar="ADDRESS")
    parser.add_argument("--context", default="127.0.0.1:50054", metavar="ADDRESS")
    parser.add_argument("--questions", type=int, default=40)
    given = parser.parse_args()
    chosen = dict(list(_answerable_questions().items())[: given.questions])
    with grpc.insecure_channel(given.context) as channel, Client(given.orchestrator, timeout_s=300) as client:
        context = context_service_pb2_grpc.ContextServiceStub(channel)
        _ingest(context)
        _measure_answerability(client, chosen)
        _measure_expansion(client, context, chosen)


def _answerable_questions() -> dict[str, str]:
    known = documents()
    answered = {one.query_id for one in judgements() if _is_relevant(one) and one.doc_id in known}
    return {number: question for number, question in queries().items() if number in answered}


def _is_relevant(judgement: Qrel) -> bool:
    return bool(judgement.relevance >= 1)


def _ingest(context: context_service_pb2_grpc.ContextServiceStub) -> None:
    known = [collection_pb2.Document(source=source, content=text) for source, text in documents().items()]
    for start in range(0, len(known), BATCH):
        context.Ingest(context_service_pb2.IngestRequest(collection=COLLECTION, documents=known[start : start + BATCH]))
    while True:
        listed = context.ListCollections(context_service_pb2.ListCollectionsRequest()).collections
        (found,) = (one for one in listed if one.name == COLLECTION)
        if found.embedded_chunk_count == found.chunk_count:
            return
        time.sleep(1)


# ---- answerability


def _measure_answerability(client: Client, chosen: Mapping[str, str]) -> None:
    random_source = random.Random(1)  # noqa: S311 - the same each time
    known = sorted(documents())
    fitted: list[Example] = []
    reported: list[Example] = []
    took_s: list[float] = []
    for number, question in chosen.items():
        own = [one.doc_id for one in judgements() if one.query_id == number and one.doc_id in known]
        relevant = next(
            one.doc_id for one in judgements() if one.query_id == number and _is_relevant(one) and one.doc_id in known
        )
        other = random_source.choice([source for source in known if source not in own])
        for source, is_answerable in ((relevant, True), (other, False)):
            started_s = time.perf_counter()
            log_odds = _log_odds(client, question, source)
            took_s.append(time.perf_counter() - started_s)
            (fitted if int(number) % 2 else reported).append((log_odds, is_answerable))
    found = fit_calibration(fitted)
    _say(f"answerability: {len(fitted)} examples calibrate, {len(reported)} are reported, {_median(took_s)} each")
    _say(f"slope {found.slope:.3f}, intercept {found.intercept:.3f}")
    before, after = (brier_score(calibration.judge(reported)) for calibration in (Calibration(), found))
    _say(f"Brier score {before:.3f} before, {after:.3f} after")
    _say(f"area under the curve {area_under_curve(reported):.3f}, of all {area_under_curve(fitted + reported):.3f}")
    for is_answerable in (True, False):
        values = [log_odds for log_odds, label in fitted + reported if label is is_answerable]
        _say(f"log-odds where answerable is {is_answerable}: median {statistics.median(values):.2f}")


def _log_odds(client: Client, question: str, source: str) -> float:
    request = ask_request(
        COLLECTION,
        question,
        retriever="vector",
        max_chunks=2,
        filter=f'source == "{source}"',
        min_probability=1.0,
        max_tokens=1,
        max_retries=0,
    )
    weighed: list[event_pb2.ContextWeighed] = [
        event.context_weighed for event in client.stream(request) if event.HasField("context_weighed")
    ]
    return weighed[0].log_odds


# ---- query expansion


def _measure_expansion(
    client: Client, context: context_service_pb2_grpc.ContextServiceStub, chosen: Mapping[str, str]
) -> None:
    runs: dict[str, list[ScoredDoc]] = {name: [] for name in EXPANSIONS}
    took_s: dict[str, list[float]] = {name: [] for name in EXPANSIONS}
    for number, question in chosen.items():
        for name, expansion in EXPANSIONS.items():
            started_s = time.perf_counter()
            written = [
                text for prompt in query_prompts(question, expansion) for text in prompt.read(_said(client, prompt))
            ]
            order = _search(context, question, written)
            took_s[name].append(time.perf_counter() - started_s)
            runs[name] += [ScoredDoc(number, source, float(-rank)) for rank, source in enumerate(order)]
    wanted = [one for one in judgements() if one.query_id in chosen]
    for name, run in runs.items():
        value = ir_measures.calc_aggregate([nDCG @ 10], wanted, run)[nDCG @ 10]
        _say(f"{name:28} nDCG@10 {value:.3f}, {_median(took_s[name])} for each question")


def _said(client: Client, prompt: QueryPrompt) -> str:
    messages = [message_to_proto(message) for message in prompt.messages]
    request = chat_request(messages, tools=[], max_tokens=prompt.max_tokens, temperature=0.0)
    if prompt.schema_json:
        request = structured_request(
            messages, prompt.schema_json, max_tokens=prompt.max_tokens, temperature=0.0, max_retries=0
        )
        request.output.schema_in_prompt = contract_pb2.SCHEMA_IN_PROMPT_OFF
    return client.execute(request).content


def _search(context: context_service_pb2_grpc.ContextServiceStub, question: str, written: Sequence[str]) -> list[str]:
    policy = policy_pb2.ContextPolicy(collection=COLLECTION, retriever=policy_pb2.RETRIEVER_HYBRID, max_chunks=DEPTH)
    request = context_service_pb2.RetrieveRequest(query=question, policy=policy, more_queries=written)
    return list(dict.fromkeys(chunk.source for chunk in context.Retrieve(request).chunks))


def _median(times_s: Sequence[float]) -> str:
    return f"{statistics.median(times_s):.2f} s"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
