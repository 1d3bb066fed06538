"""Retrieval that asks the real model: further queries, a hypothetical document, and whether the chunks answer."""

import json
import uuid

import grpc
import pytest

from pagantic.common.v1 import error_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client, chat_request
from pagantic_common.domain.text.citations import NOT_IN_SOURCES
from tests.support.killing import wait_until

DOCUMENTS = {
    "harbour.txt": "The harbour of Vell opens at 6 in the morning. A pilot is ordered by radio on channel 14.",
    "lighthouse.txt": "The lighthouse of Vell was built in 1874 from white granite.",
}
QUESTION = "When was the lighthouse of Vell built?"


@pytest.fixture(scope="module")
def collection(system):
    name = f"weighed-{uuid.uuid4()}"
    documents = [collection_pb2.Document(source=source, content=text) for source, text in DOCUMENTS.items()]
    with grpc.insecure_channel(system.address("context")) as channel:
        stub = context_service_pb2_grpc.ContextServiceStub(channel)
        ask = context_service_pb2.IngestRequest(collection=name, documents=documents)
        stub.Ingest(ask, wait_for_ready=True, timeout=30)

        def embedded():
            listed = stub.ListCollections(context_service_pb2.ListCollectionsRequest()).collections
            return any(one.name == name and one.embedded_chunk_count == one.chunk_count for one in listed)

        wait_until(embedded, "the chunks have embeddings")
    return name


def policy_of(collection, **fields):
    return policy_pb2.ContextPolicy(collection=collection, retriever=policy_pb2.RETRIEVER_HYBRID, **fields)


def run(system, request):
    with Client(system.address("orchestrator")) as client:
        response = client.execute(request)
        return response, client.timeline(response.request_id)


@pytest.mark.whole
def test_the_model_writes_queries_and_a_document_which_find_what_the_question_finds(system, collection):
    expansion = policy_pb2.QueryExpansion(queries=2, hypothetical_document=True)
    policy = policy_of(collection, query_expansion=expansion)
    request = chat_request(QUESTION, context=policy, tools=[], max_tokens=200, temperature=0)
    response, events = run(system, request)
    assert not response.HasField("error")
    assert list(response.warnings) == []
    (retrieved,) = [event.context_retrieved for event in events if event.HasField("context_retrieved")]
    assert (retrieved.chunk_count, 2 <= retrieved.more_query_count <= 3) == (2, True)
    ends = [event.inference_end for event in events if event.HasField("inference_end")]
    assert response.token_usage.output_tokens == sum(end.tokens_out for end in ends)
    assert len(ends) == 3


def test_the_probability_of_an_answer_is_the_confidence_of_the_response(system, collection):
    policy = policy_of(collection, answerability=policy_pb2.Answerability())
    request = chat_request(QUESTION, context=policy, tools=[], max_tokens=40, temperature=0)
    response, events = run(system, request)
    assert response.confidence_source == execution_pb2.CONFIDENCE_SOURCE_RETRIEVAL
    assert 0 < response.confidence < 1
    (weighed,) = [event.context_weighed for event in events if event.HasField("context_weighed")]
    assert weighed.probability == response.confidence
    assert response.token_usage.prompt_tokens > weighed.tokens_in > 0


def test_what_is_too_unlikely_is_refused_or_abstained_from_without_decoding(system, collection):
    policy = policy_of(collection, answerability=policy_pb2.Answerability(min_probability=0.5, intercept=-1000))
    response, events = run(system, chat_request(QUESTION, context=policy, tools=[]))
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_NOT_ANSWERABLE
    assert not any(event.HasField("inference_start") for event in events)
    cited, _ = run(system, chat_request(QUESTION, context=policy, tools=[], citations=True))
    assert cited.content == NOT_IN_SOURCES
    assert (cited.confidence, cited.token_usage.output_tokens) == (0, 0)


@pytest.mark.whole
def test_labels_calibrate_the_model(system, collection, tmp_path):
    labels = [("When was the lighthouse built?", True), ("Who is the king of Vell?", False), ("Which channel?", True)]
    lines = [json.dumps({"question": question, "answerable": label}) for question, label in labels]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines), encoding="utf-8")
    done = system.run("pagantic", "calibrate", collection, tmp_path / "labels.jsonl", "--json")
    figures = json.loads(done.stdout)
    assert (figures["questions"], figures["answerable"]) == (3, 2)
    assert figures["brier_after"] <= figures["brier_before"]
    shown = system.run("pagantic", "ask", collection, QUESTION, "--queries", "2", "--min-probability", "0").stdout
    assert shown.strip()
