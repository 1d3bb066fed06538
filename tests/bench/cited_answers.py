"""How many quotes are invented: `python -m tests.bench.cited_answers [--count N] [--address A] [--model ALIAS]`.

Questions of the Cranfield collection are asked of a running system, about its abstracts and about documents that try
to break the answer. Each is asked with citations, and again under a plain JSON Schema that describes the same form.
A quote is invented when it is not in the document that the citation names or, under the plain schema, in no document
at all, whatever its spaces. The check knows only the documents. PAGANTIC_SUITES is the folder of the collection.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client, chat_request, structured_request
from pagantic_common.client.descriptions import error_code_name
from pagantic_common.domain.defaults import local_address
from pagantic_common.domain.text.citations import CitationPolicy, read_claims, schema_of
from tests.support.hostile_sources import HOSTILE_SOURCES

MAX_CLAIMS = 3
MAX_CHUNKS = 4
MAX_TOKENS = 768
BATCH = 100
INGEST_S = 120.0
HOSTILE_EACH = 20  # one question in so many is about the hostile documents


@dataclass
class Tally:
    """The counts of one way to ask, the seconds that it took, and the invented quotes."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    invented: list[str] = field(default_factory=list)


Count = Callable[[Tally, execution_pb2.SystemResponse], None]


def main() -> int:
    """Print the counts of both ways; 1 when a held quote is invented."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--address", default=local_address("orchestrator"))
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    folder = Path(os.environ.get("PAGANTIC_SUITES", "")) / "cranfield"
    documents = cranfield_documents(folder) | _hostile_documents()
    questions = _questions(folder, options.count)
    collection = f"cited-{uuid.uuid4()}"
    with grpc.insecure_channel(options.address) as channel:
        context = context_service_pb2_grpc.ContextServiceStub(channel)  # type: ignore[no-untyped-call]
        _ingest(context, collection, documents)
        try:
            with Client(options.address) as client:
                held = _ask_all(
                    client,
                    (_cited(question, collection, options.model) for question in questions),
                    lambda tally, response: _count_held(tally, response, documents),
                )
                spaced = {source: _with_single_spaces(text) for source, text in documents.items()}
                plain = _ask_all(
                    client,
                    (_plain(question, collection, options.model) for question in questions),
                    lambda tally, response: _count_plain(tally, response, spaced),
                )
        finally:
            context.DeleteCollection(context_service_pb2.DeleteCollectionRequest(name=collection), timeout=INGEST_S)
    for name, tally in (("with citations", held), ("under a plain schema", plain)):
        listed = ", ".join(f"{count} {what}" for what, count in sorted(tally.counts.items()))
        sys.stdout.write(f"{name}: {listed}; {tally.seconds / len(questions):.2f} s for a question\n")
    for quote in held.invented:
        sys.stdout.write(f"invented: {quote!r}\n")
    return int(bool(held.invented))


def cranfield_documents(folder: Path) -> dict[str, str]:
    """Return the abstracts of the collection by the names of their documents."""
    text = (folder / "cran.all.1400.xml").read_text(encoding="utf-8")
    found = re.findall(r"<docno>(\d+)</docno>.*?<text>(.*?)</text>", text, re.DOTALL)
    return {f"cranfield-{number}": html.unescape(body) for number, body in found if body.strip()}


def _hostile_documents() -> dict[str, str]:
    return {f"hostile-{number}": f"flow {text}" for number, text in enumerate(HOSTILE_SOURCES)}


def _questions(folder: Path, count: int) -> list[str]:
    """Return so many questions: those of the collection, again and again, some with a word of the hostile documents."""
    text = (folder / "cran.qry.xml").read_text(encoding="utf-8")
    asked = [" ".join(html.unescape(title).split()) for title in re.findall(r"<title>(.*?)</title>", text, re.DOTALL)]
    questions = [asked[number % len(asked)] for number in range(count)]
    for number in range(0, count, HOSTILE_EACH):
        hostile = HOSTILE_SOURCES[number // HOSTILE_EACH % len(HOSTILE_SOURCES)]
        questions[number] = f"flow {hostile[:60]}"
    return questions


def _ingest(
    context: context_service_pb2_grpc.ContextServiceStub, collection: str, documents: Mapping[str, str]
) -> None:
    all_documents = [collection_pb2.Document(source=source, content=text) for source, text in documents.items()]
    for first in range(0, len(all_documents), BATCH):
        batch = all_documents[first : first + BATCH]
        context.Ingest(context_service_pb2.IngestRequest(collection=collection, documents=batch), timeout=INGEST_S)


def _cited(question: str, collection: str, model: str) -> execution_pb2.SystemRequest:
    return chat_request(
        question,
        tools=[],
        context=_context(collection),
        citations=contract_pb2.Citations(max_claims=MAX_CLAIMS),
        model=model,
        max_tokens=MAX_TOKENS,
        temperature=0,
    )


def _plain(question: str, collection: str, model: str) -> execution_pb2.SystemRequest:
    schema = schema_of(CitationPolicy(max_claims=MAX_CLAIMS))
    return structured_request(
        question, schema, context=_context(collection), model=model, max_tokens=MAX_TOKENS, temperature=0
    )


def _context(collection: str) -> policy_pb2.ContextPolicy:
    return policy_pb2.ContextPolicy(collection=collection, max_chunks=MAX_CHUNKS)


def _ask_all(client: Client, requests: Iterable[execution_pb2.SystemRequest], count: Count) -> Tally:
    tally = Tally()
    started_s = time.perf_counter()
    for request in requests:
        tally.counts["questions"] += 1
        response = client.execute(request)
        if response.HasField("error"):
            tally.counts[f"failed ({error_code_name(response.error.code)})"] += 1
        else:
            count(tally, response)
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


if __name__ == "__main__":
    sys.exit(main())
