"""Retrieved context and what it says of the answer, over a real socket."""

import pytest

from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.chunks import FENCED_HEADING, Chunk
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Role
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedContext, ScriptedInference, answer, scripted_services

POLICY = policy_pb2.ContextPolicy(collection="c")
CHUNKS = (Chunk("1", "red hats", "s", 3.0, "bm25"), Chunk("2", "blue", "s", 1.0, "bm25"))
STRUCTURED = {
    "mode": execution_pb2.MODE_STRUCTURED,
    "output": contract_pb2.OutputContract(schema_json="{}"),
}
RETRIEVAL = execution_pb2.CONFIDENCE_SOURCE_RETRIEVAL


@pytest.mark.parametrize(
    ("fields", "chunks", "confidence", "source"),
    [
        ({}, CHUNKS, 0.5, RETRIEVAL),
        ({}, (), None, execution_pb2.CONFIDENCE_SOURCE_UNSPECIFIED),
        (STRUCTURED, CHUNKS, 0.5, RETRIEVAL),
        (STRUCTURED | {"mode": execution_pb2.MODE_REDUNDANT}, CHUNKS, 1 / 3, execution_pb2.CONFIDENCE_SOURCE_VOTING),
    ],
)
async def test_confidence_is_of_retrieval_where_nothing_else_judged(tmp_path, fields, chunks, confidence, source):
    services = scripted_services(inference=ScriptedInference(answer("{}")), context=ScriptedContext(*chunks))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request("Red shoes?", context=POLICY, **fields))
    assert (response.confidence if response.HasField("confidence") else None) == confidence
    assert response.confidence_source == source


async def test_the_context_message_names_the_tools_that_are_offered_and_shows_the_schema(tmp_path):
    inference = ScriptedInference(answer("{}"))
    services = scripted_services(inference=inference, context=ScriptedContext(*CHUNKS))
    policy = policy_pb2.ContextPolicy(collection="c", include_tools=True, include_schema=True)
    output = contract_pb2.OutputContract(schema_json='{"type": "object"}')
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request("Red?", context=policy, output=output))
    assert not response.HasField("error")
    (message,) = inference.commands[0].messages
    assert message.role is Role.USER
    assert message.content == (
        f"{FENCED_HEADING}\n\n```\n[1] (s): red hats\n[2] (s): blue\n```\n\n"
        "Tools that can be called:\n\n- clock: Tells the time.\n\n"
        'JSON Schema of the answer:\n\n{"type": "object"}\n\nRed?'
    )


async def test_a_trusted_collection_may_speak_as_the_system(tmp_path):
    inference = ScriptedInference(answer("yes"))
    services = scripted_services(inference=inference, context=ScriptedContext(*CHUNKS))
    policy = policy_pb2.ContextPolicy(collection="c", role=policy_pb2.CONTEXT_ROLE_SYSTEM)
    async with orchestrator(tmp_path, services) as stub:
        assert (await execute(stub, system_request("Red?", context=policy))).content == "yes"
        system, asked = inference.commands[0].messages
        assert (system.role, asked.content) == (Role.SYSTEM, "Red?")
        assert system.content == "Relevant context:\n\n[1] (s): red hats\n[2] (s): blue"
        with pytest.raises(InvalidRequest, match=r"context\.role 9"):
            await execute(stub, system_request(context=policy_pb2.ContextPolicy(collection="c", role=9)))
        planned = system_request(mode=execution_pb2.MODE_PLAN, context=policy)
        with pytest.raises(InvalidRequest, match="role"):
            await execute(stub, planned)
