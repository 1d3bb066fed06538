"""The id of an effect reaches a tool of every kind, and a tool says what became of a lost call, over real sockets."""

from __future__ import annotations

import json
import sys

import grpc
import pytest

from pagantic.common.v1 import message_pb2
from pagantic.tools.v1 import tools_service_pb2 as pb
from tests.integration.tools.mcp_service import mcp_service, program, tools, until
from tests.integration.tools.test_openapi import api, service

EFFECT, OTHER = "a1" * 32, "b2" * 32
MODULE = '''
import asyncio
from pathlib import Path
from pagantic_common.tools import ToolContext, ToolNotRun, tool

LEDGER = Path({ledger!r})

@tool(safety="write", timeout_s=0.5)
async def pay(euros: int, context: ToolContext) -> str:
    """Pays, and answers too late if the sum is large."""
    LEDGER.joinpath(context.effect_id).write_text(str(euros))
    await asyncio.sleep(60 if euros > 100 else 0)
    return f"paid {{euros}}"

@pay.outcome
def _(effect_id: str) -> str:
    """Looks the payment up."""
    try:
        return "paid " + LEDGER.joinpath(effect_id).read_text()
    except FileNotFoundError:
        raise ToolNotRun from None
'''


def request(name, effect_id=EFFECT, **arguments):
    call = message_pb2.ToolCall(id="c1", name=name, arguments_json=json.dumps(arguments))
    return pb.ExecuteToolRequest(call=call, effect_id=effect_id)


async def outcome(stub, effect_id, tool="pay"):
    reply = await stub.GetToolOutcome(pb.GetToolOutcomeRequest(tool_name=tool, effect_id=effect_id))
    return pb.ToolOutcome.Name(reply.outcome).removeprefix("TOOL_OUTCOME_"), reply.content


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "paying.py"
    path.write_text(MODULE.format(ledger=str(tmp_path)))
    yield (str(path),)
    sys.modules.pop(path.stem, None)


async def test_a_payment_is_found_even_after_a_restart_of_the_service(tmp_path, module):
    async with mcp_service(tmp_path, modules=module) as stub:
        assert await outcome(stub, EFFECT) == ("NOT_RUN", "")
        assert (await stub.ExecuteTool(request("pay", euros=3))).result.content == "paid 3"
    async with mcp_service(tmp_path, modules=module) as stub:
        assert await outcome(stub, EFFECT) == ("DONE", "paid 3")
        assert await outcome(stub, OTHER) == ("NOT_RUN", "")
        assert await outcome(stub, EFFECT, "clock") == ("UNKNOWN", "")
        assert await outcome(stub, EFFECT, "no_such_tool") == ("UNKNOWN", "")


async def test_a_payment_that_answers_too_late_has_its_result(tmp_path, module):
    async with mcp_service(tmp_path, modules=module) as stub:
        reply = await stub.ExecuteTool(request("pay", euros=300))
        assert (reply.result.content, reply.result.is_error, reply.attempts) == ("paid 300", False, 1)


@pytest.mark.parametrize("effect_id", ["short", "A1" * 32, EFFECT + "00", "g" * 64])
async def test_a_malformed_id_is_refused(tmp_path, module, effect_id):
    async with mcp_service(tmp_path, modules=module) as stub:
        for method, asked in (
            (stub.ExecuteTool, request("pay", effect_id, euros=1)),
            (stub.GetToolOutcome, pb.GetToolOutcomeRequest(tool_name="pay", effect_id=effect_id)),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="64 hexadecimal digits"):
                await method(asked)


async def test_an_mcp_server_gets_the_id_in_its_meta(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:

        async def is_connected():
            return "t_effect" in await tools(stub)

        await until(is_connected)
        reply = await stub.ExecuteTool(request("t_effect"))
        assert reply.result.content == EFFECT
        reply = await stub.ExecuteTool(request("t_effect", ""))
        assert reply.result.content == "none"


async def test_an_operation_gets_the_id_as_its_idempotency_key(tmp_path):
    async with api() as url, service(tmp_path, url) as stub:
        reply = await stub.ExecuteTool(request("pets_createPet", body={"name": "Rex"}))
        assert json.loads(reply.result.content)["headers"]["idempotency-key"] == EFFECT
        reply = await stub.ExecuteTool(request("pets_createPet", "", body={"name": "Rex"}))
        assert "idempotency-key" not in json.loads(reply.result.content)["headers"]


async def test_a_configured_key_is_the_only_one(tmp_path):
    headers = {"headers": {"Idempotency-Key": "our own"}}
    async with api() as url, service(tmp_path, url, keys=headers) as stub:
        reply = await stub.ExecuteTool(request("pets_createPet", body={"name": "Rex"}))
        assert json.loads(reply.result.content)["headers"]["idempotency-key"] == "our own"
