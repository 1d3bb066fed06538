"""How many quotes are invented: `python -m tests.bench.cited_answers [--count N] [--plain] [--model ALIAS]`.

Questions of the Cranfield collection are asked of a running system, about its abstracts and about documents that try
to break the answer. Each is asked with citations and, with `--plain`, again under a plain JSON Schema that describes
the same form. Each question is asked `--times` times, one after another, for its prompt to be read once; answers are
sampled, so each is another. A quote is invented when it is not in the document that the citation names or, under the
plain schema, in no document at all, whatever its spaces. The check knows only the documents. PAGANTIC_SUITES is the
folder of the collection.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client, chat_request, structured_request
from pagantic_common.client.descriptions import error_code_name
from pagantic_common.domain.defaults import local_address
from pagantic_common.domain.text.citations import CitationPolicy, read_claims, schema_of
from tests.bench import cranfield
from tests.support.hostile_sources import HOSTILE_SOURCES

DEFAULT_CLAIMS = 3
DEFAULT_TIMES = 5
AT_ONCE = 6
MAX_CHUNKS = 4
MAX_TOKENS = 768
TEMPERATURE = 0.8
TOLD_EACH = 50  # answers
BATCH = 100
ANSWER_S = 600.0
INGEST_S = 120.0
HOSTILE_EACH = 20  # one question in so many is about the hostile documents


@dataclass
class Tally:
    """The counts of one way to ask, the seconds that it took, and the quotes that were invented though held."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    invented: list[str] = field(default_factory=list)


Make = Callable[[str], execution_pb2.SystemRequest]
Count = Callable[[Tally, execution_pb2.SystemResponse], None]


def main() -> int:
    """Print the counts of each way; 1 when a held quote is invented."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--times", type=int, default=DEFAULT_TIMES, help="How often each question is asked.")
    parser.add_argument("--claims", type=int, default=DEFAULT_CLAIMS, help="Most claims of an answer.")
    parser.add_argument("--plain", action="store_true", help="Ask under a plain schema, too.")
    parser.add_argument("--address", default=local_address("orchestrator"))
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    documents = cranfield_documents() | _hostile_documents()
    spaced = {source: _with_single_spaces(text) for source, text in documents.items()}
    collection = f"cited-{uuid.uuid4()}"
    common = {
        "context": policy_pb2.ContextPolicy(collection=collection, max_chunks=MAX_CHUNKS),
        "model": options.model,
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
    }
    bounds = contract_pb2.Citations(max_claims=options.claims)
    schema = schema_of(CitationPolicy(max_claims=options.claims))
    ways: dict[str, tuple[Make, Count]] = {
        "with citations": (
            lambda question: chat_request(question, tools=[], citations=bounds, **common),
            lambda tally, response: _count_held(tally, response, documents),
        )
    }
    if options.plain:
        ways["under a plain schema"] = (
            lambda question: structured_request(question, schema, **common),
            lambda tally, response: _count_plain(tally, response, spaced),
        )
    invented: list[str] = []
    with grpc.insecure_channel(options.address) as channel:
        context = context_service_pb2_grpc.ContextServiceStub(channel)  # type: ignore[no-untyped-call]
        _ingest(context, collection, documents)
        try:
            with Client(options.address, timeout_s=ANSWER_S) as client:
                for name, (make, count) in ways.items():
                    tally = _ask_all(client, _questions(options.count // options.times), options.times, make, count)
                    listed = ", ".join(f"{number} {what}" for what, number in sorted(tally.counts.items()))
                    _say(f"{name}: {listed}; {tally.seconds:.0f} s")
                    invented += tally.invented
        finally:
            context.DeleteCollection(context_service_pb2.DeleteCollectionRequest(name=collection), timeout=INGEST_S)
    for quote in invented:
        _say(f"invented: {quote!r}")
    return int(bool(invented))


def cranfield_documents() -> dict[str, str]:
    """Return the abstracts of the collection by the names of their documents."""
    return {f"cranfield-{number}": text for number, text in cranfield.documents().items()}


def _hostile_documents() -> dict[str, str]:
    return {f"hostile-{number}": f"flow {text}" for number, text in enumerate(HOSTILE_SOURCES)}


def _questions(count: int) -> list[str]:
    """Return so many questions: those of the collection, again and again, some with a word of the hostile documents."""
    asked = list(cranfield.queries().values())
    questions = [asked[number % len(asked)] for number in range(count)]
    for number in range(0, count, HOSTILE_EACH):
        hostile = HOSTILE_SOURCES[number // HOSTILE_EACH % len(HOSTILE_SOURCES)]
        questions[number] = f"flow {hostile[:60]}"
    return questions


def _ingest(
    context: context_service_pb2_grpc.ContextServiceStub, collection: str, documents: Mapping[str, str]
) -> None:
    # The questions are searched by their words: a model that embeds would take the processor from the one that answers.
    made = context_service_pb2.CreateCollectionRequest(name=collection, embedding_model="")
    context.CreateCollection(made, timeout=INGEST_S)
    all_documents = [collection_pb2.Document(source=source, content=text) for source, text in documents.items()]
    for first in range(0, len(all_documents), BATCH):
        batch = all_documents[first : first + BATCH]
        context.Ingest(context_service_pb2.IngestRequest(collection=collection, documents=batch), timeout=INGEST_S)


def _ask_all(client: Client, questions: Sequence[str], times: int, make: Make, count: Count) -> Tally:
    """Ask each question so many times, several questions at once, and count what the answers say."""
    tally = Tally()
    started_s = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = threads.map(lambda question: [client.execute(make(question)) for _ in range(times)], questions)
        for response in itertools.chain.from_iterable(answers):
            tally.counts["questions"] += 1
            if response.HasField("error"):
                tally.counts[f"failed ({error_code_name(response.error.code)})"] += 1
            else:
                count(tally, response)
            if tally.counts["questions"] % TOLD_EACH == 0:
                sys.stderr.write(f"{tally.counts['questions']} answers\n")
    tally.seconds = time.perf_counter() - started_s
    return tally


def _count_held(tally: Tally, response: execution_pb2.SystemResponse, documents: Mapping[str, str]) -> None:
    tally.counts["abstentions"] += not response.citations
    for citation in response.citations:
        tally.counts["quotes"] += 1
        if citation.quote not in documents[citation.document]:
            tally.counts["invented quotes"] += 1
            tally.invented.append(citation.quote)


def _count_plain(tally: Tally, response: execution_pb2.SystemResponse, documents: Mapping[str, str]) -> None:
    claims = read_claims(response.structured_output_json) or ()
    tally.counts["abstentions"] += not claims
    for claim in claims:
        tally.counts["quotes"] += 1
        if not any(_with_single_spaces(claim.quote) in text for text in documents.values()):
            tally.counts["invented quotes"] += 1


def _with_single_spaces(text: str) -> str:
    return " ".join(text.split())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
