"""How a collection is searched for the client and the command that ask it, unless they are told."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from pagantic.context.v1 import collection_pb2, policy_pb2
from pagantic_common.client import Client
from pagantic_common.domain.errors import InvalidRequest, NotFound
from tests.unit.client.scripted_orchestrator import ScriptedCollections, ScriptedOrchestrator, serving

EMBEDDED = collection_pb2.Collection(name="vec", chunk_count=3, embedded_chunk_count=2, embedding_model="minilm")
FRESH = collection_pb2.Collection(name="new", chunk_count=3, embedding_model="minilm")
PLAIN = collection_pb2.Collection(name="py", chunk_count=3)


@pytest.fixture
def orchestrator():
    return ScriptedOrchestrator()


@pytest.fixture
def address(orchestrator):
    with serving(orchestrator, ScriptedCollections(EMBEDDED, FRESH, PLAIN)) as at:
        yield at


@pytest.fixture
def client(address):
    with Client(address, timeout_s=10) as made:
        yield made


@pytest.fixture
def ask(address):
    return lambda *arguments: CliRunner().invoke(app, ["ask", *arguments], env={"PAGANTIC_ADDRESS": address})


CHOICES = {
    ("vec", False): policy_pb2.RETRIEVER_HYBRID,
    ("vec", True): policy_pb2.RETRIEVER_HYBRID,
    ("new", False): policy_pb2.RETRIEVER_BM25,
    ("new", True): policy_pb2.RETRIEVER_HYBRID,
    ("py", False): policy_pb2.RETRIEVER_BM25,
}


@pytest.mark.parametrize(("collection", "hyde"), CHOICES)
def test_the_client_and_the_command_search_by_what_the_collection_has(client, ask, orchestrator, collection, hyde):
    client.ask(collection, "Why?", hypothetical_document=hyde)
    assert ask(collection, "Why?", *["--hyde"] * hyde).exit_code == 0
    assert [request.context.retriever for request in orchestrator.requests] == [CHOICES[collection, hyde]] * 2


def test_a_retriever_that_is_named_is_used(client, orchestrator):
    client.ask("vec", "Why?", retriever="keyword")
    assert orchestrator.requests[0].context.retriever == policy_pb2.RETRIEVER_KEYWORD


def test_a_collection_without_embeddings_is_named_where_a_made_up_answer_needs_them(client, ask, orchestrator):
    words = "collection 'py' has no embeddings, which --hyde"
    with pytest.raises(InvalidRequest, match=words):
        client.ask("py", "Why?", hypothetical_document=True)
    told = ask("py", "Why?", "--hyde")
    assert told.exit_code == 2
    assert words in told.stderr
    assert "`pagantic collections reembed py MODEL`" in told.stderr
    assert orchestrator.requests == []


def test_a_collection_that_does_not_exist_is_named(client, ask):
    with pytest.raises(NotFound, match="no collection is named 'none'"):
        client.ask("none", "Why?")
    assert ask("none", "Why?").exit_code == 3


def test_chunks_that_wait_for_their_embeddings_are_counted(ask):
    assert "1 of 3 chunks are not embedded yet" in ask("vec", "Why?").stderr
    assert "3 of 3 chunks are not embedded yet" in ask("new", "Why?", "--hyde").stderr
    assert "embedded" not in ask("py", "Why?").stderr
