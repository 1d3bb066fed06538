"""What the orchestrator makes of a context service's answer."""

import grpc
import pytest

from pagantic.common.v1 import chunk_pb2, message_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as rpc
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.rerank.v1 import ranking_pb2, rerank_service_pb2, rerank_service_pb2_grpc
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Role
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.testing.server import serving
from services.orchestrator.adapters.grpc_context import GrpcContext
from services.orchestrator.adapters.journal.writes import entry_from_json, entry_to_json
from services.orchestrator.convert.request import request_from_proto
from services.orchestrator.core.execution.replay import Admitted
from services.orchestrator.core.model.retrieval import Answerability, ContextPolicy, QueryExpansion, Retriever
from tests.support.doors import open_to_all

NAME = "pagantic.context.v1.ContextService"
RERANK = "pagantic.rerank.v1.RerankService"


class WithoutRoles(rpc.ContextServiceServicer):
    """A context service of before there were roles: its message is always the system's."""

    async def BuildContext(self, request, context):
        message = message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content="Relevant context:\n\n[1] (a): Obey.")
        return pb.BuildContextResponse(message=message, chunks=[chunk_pb2.Chunk(source="a", content="Obey.")])


@pytest.mark.parametrize(("is_system", "role", "fence"), [(False, Role.USER, "```\n"), (True, Role.SYSTEM, "")])
async def test_what_a_service_without_roles_found_is_quoted_all_the_same(is_system, role, fence):
    add = rpc.add_ContextServiceServicer_to_server
    registration = Registration(NAME, lambda server: add(WithoutRoles(), server), open_to_all(NAME))
    async with serving([registration]) as (channel, _), grpc.aio.insecure_channel("127.0.0.1:1") as nobody:
        context = GrpcContext(channel, nobody, 5.0)
        built = await context.build("q", ContextPolicy(Retriever.BM25, "c", is_system=is_system), "")
    assert built.message.role is role
    assert f"\n\n{fence}[1] (a): Obey." in built.message.content


class Remembering(rpc.ContextServiceServicer, rerank_service_pb2_grpc.RerankServiceServicer):
    """A context and a rerank service that keep the chunks, and the request to rerank them."""

    def __init__(self):
        self.asked = None

    async def Retrieve(self, request, context):
        self.retrieved = request
        return pb.RetrieveResponse(chunks=[chunk_pb2.Chunk(source="a", content="Obey.")], unembedded_chunk_count=4)

    async def Rerank(self, request, context):
        self.asked = request
        return rerank_service_pb2.RerankResponse(chunks=request.chunks)

    async def BuildContext(self, request, context):
        self.built = request
        return pb.BuildContextResponse(chunks=request.chunks, unembedded_chunk_count=0 if request.chunks else 7)


def registrations_of(service):
    """Return what serves a context and a rerank service."""
    return [
        Registration(NAME, lambda server: rpc.add_ContextServiceServicer_to_server(service, server), open_to_all(NAME)),
        Registration(
            RERANK,
            lambda server: rerank_service_pb2_grpc.add_RerankServiceServicer_to_server(service, server),
            open_to_all(RERANK),
        ),
    ]


RERANKING = policy_pb2.RerankPolicy(
    top_k=3,
    scorers=[
        ranking_pb2.WeightedScorer(scorer="retriever", weight=0.25),
        ranking_pb2.WeightedScorer(scorer="judge", model="large"),
    ],
    fusion=ranking_pb2.SCORE_FUSION_RECIPROCAL_RANK,
    diversity=0.5,
    max_per_source=2,
)


async def test_a_requests_ranking_reaches_the_rerank_service():
    service = Remembering()
    request = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_CHAT,
        context=policy_pb2.ContextPolicy(collection="c", min_score=0.5, rerank=RERANKING),
    )
    policy = request_from_proto(request, "r").context
    async with serving(registrations_of(service)) as (channel, _):
        built = await GrpcContext(channel, channel, 5.0).build("q", policy, "")
    assert built.unembedded_count == 4
    asked = service.asked
    assert (asked.query, asked.scorer, asked.top_k, asked.min_score) == ("q", "", 3, 0.5)
    assert (asked.scorers, asked.fusion) == (RERANKING.scorers, RERANKING.fusion)
    assert (asked.diversity, asked.max_per_source) == (0.5, 2)


async def test_further_queries_are_searched_and_the_question_alone_reranks():
    service = Remembering()
    async with serving(registrations_of(service)) as (channel, _):
        context = GrpcContext(channel, channel, 5.0)
        built = await context.build("q", ContextPolicy(Retriever.BM25, "c"), "", ("a", "b"))
        assert built.unembedded_count == 7
        assert (service.built.query, list(service.built.more_queries)) == ("q", ["a", "b"])
        await context.build("q", ContextPolicy(Retriever.BM25, "c", scorer="judge"), "", ("a", "b"))
    assert (service.retrieved.query, list(service.retrieved.more_queries)) == ("q", ["a", "b"])
    assert service.asked.query == "q"


@pytest.mark.parametrize(
    ("field", "decoded"),
    [
        ({}, Answerability()),
        ({"slope": 0.0, "intercept": -1.5, "model": "m"}, Answerability(0.0, 0.0, -1.5, "m")),
        ({"min_probability": 0.5, "slope": 2.0}, Answerability(0.5, 2.0)),
    ],
)
def test_what_the_model_is_asked_for_survives_the_journal(field, decoded):
    policy = policy_pb2.ContextPolicy(
        collection="c",
        retriever=policy_pb2.RETRIEVER_VECTOR,
        query_expansion=policy_pb2.QueryExpansion(queries=2, hypothetical_document=True, model="m"),
        answerability=policy_pb2.Answerability(**field),
    )
    admitted = Admitted(request_from_proto(execution_pb2.SystemRequest(mode=1, context=policy), "r"))
    for kept in (admitted, entry_from_json(entry_to_json(admitted))):
        assert kept.request.context.query_expansion == QueryExpansion(2, has_hypothetical_document=True, model="m")
        assert kept.request.context.answerability == decoded
    assert request_from_proto(execution_pb2.SystemRequest(mode=1), "r").context is None


def test_a_fusion_of_scores_that_is_not_known_is_refused():
    policy = policy_pb2.ContextPolicy(collection="c", rerank=policy_pb2.RerankPolicy(fusion=99))
    with pytest.raises(InvalidRequest, match=r"context\.rerank\.fusion 99 is not known"):
        request_from_proto(execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT, context=policy), "r")
