"""Models on machines of their own: three inference services behind one orchestrator, which knows them by alias."""

import contextlib
import json
import signal
from types import SimpleNamespace

import grpc
import pytest

from pagantic.common.v1 import error_pb2
from pagantic.context.v1 import context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.defaults import EMBEDDING_MODEL
from tests.e2e.test_engines import LOCAL, execute
from tests.support.killing import wait_until
from tests.support.live_requests import CONTEXT, ingest, say, structured
from tests.support.service_process import ServiceProcess

TWIN = "twin"
pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def pools(system, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")

    def start(area, name, **settings):
        return stack.enter_context(ServiceProcess(area, system, folder / f"{name}.log", **settings))

    with contextlib.ExitStack() as stack:
        texts = start("inference", "texts", embedding_model="none", models="{}", tuning="false")
        twin = start("inference", "twin", model_name=TWIN, embedding_model="none", models="{}", tuning="false")
        vectors = start("inference", "vectors", model_path="none", models="{}")
        by_alias = {TWIN: f"ipv4:{twin.address}", EMBEDDING_MODEL: vectors.address}
        callers = {"inference_address": texts.address, "model_pools": json.dumps(by_alias), "connect_patience_s": 1}
        context = start("context", "context", data_folder=folder / "context", **callers)
        journal_url = f"sqlite:///{folder / 'journal.sqlite3'}"
        settings = {"context_address": context.address, "journal_url": journal_url}
        orchestrator = start("orchestrator", "orchestrator", **settings, **callers)
        channel = stack.enter_context(grpc.insecure_channel(orchestrator.address))
        yield SimpleNamespace(stub=rpc.OrchestratorServiceStub(channel), twin=twin, context=context)


def aliases(pools):
    return [model.name for model in pools.stub.ListModels(pb.ListModelsRequest(), timeout=30).models]


def test_each_model_is_listed_once_the_default_first(pools):
    assert aliases(pools) == [LOCAL, TWIN, EMBEDDING_MODEL]


@pytest.mark.parametrize(("asked", "answers"), [("", LOCAL), (LOCAL, LOCAL), (TWIN, TWIN)])
def test_the_alias_decides_who_answers(pools, asked, answers):
    response, model = execute(pools.stub, say("Say hello.", max_tokens=4), asked)
    assert not response.HasField("error")
    assert model == answers
    response, model = execute(pools.stub, structured(max_tokens=60), asked)
    assert not response.HasField("error")
    assert model == answers


def test_collections_are_embedded_and_searched_by_the_pool_of_their_model(pools):
    ingest(pools.context.address)
    with grpc.insecure_channel(pools.context.address) as channel:
        stub = context_service_pb2_grpc.ContextServiceStub(channel)

        def is_embedded():
            (one,) = stub.ListCollections(context_service_pb2.ListCollectionsRequest()).collections
            return one.embedded_chunk_count == one.chunk_count

        wait_until(is_embedded, "the chunks have embeddings")
        policy = policy_pb2.ContextPolicy(collection=CONTEXT.collection, retriever=policy_pb2.RETRIEVER_VECTOR)
        found = stub.Retrieve(context_service_pb2.RetrieveRequest(query="Tell me about the ocean.", policy=policy))
    assert [chunk.source for chunk in found.chunks] == ["sea.txt"]
    vectors = pools.stub.Embed(inference_pb.EmbedRequest(texts=["The sea is wide."]), timeout=30)
    assert len(vectors.embeddings[0].values) == 384


def test_a_pool_that_is_gone_fails_its_own_models_alone(pools):
    pools.twin.send(signal.SIGKILL)
    request = say("Say hello.", max_tokens=4)
    request.hints.model = TWIN
    response = pools.stub.Execute(request, timeout=60)
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_DEPENDENCY_UNAVAILABLE
    assert "inference" in response.error.message
    assert aliases(pools) == [LOCAL, EMBEDDING_MODEL]
    response, model = execute(pools.stub, say("Say hello.", max_tokens=4))
    assert (response.HasField("error"), model) == (False, LOCAL)
    pools.twin.start()
    wait_until(lambda: TWIN in aliases(pools), "the pool is back")
