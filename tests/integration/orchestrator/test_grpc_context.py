"""What the orchestrator makes of a context service's answer."""

import grpc
import pytest

from pagantic.common.v1 import chunk_pb2, message_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as rpc
from pagantic_common.domain.messages import Role
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.testing.server import serving
from services.orchestrator.adapters.grpc_context import GrpcContext
from services.orchestrator.core.model.retrieval import ContextPolicy, Retriever
from tests.support.doors import open_to_all

NAME = "pagantic.context.v1.ContextService"


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
