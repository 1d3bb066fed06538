"""Inputs that mean harm: each is answered with its code, and the service is well afterwards."""

import sys
import time
from functools import partial

import pytest

from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.rpc.call import call_unary
from tests.support.constraint_app import running
from tests.support.examples import sample
from tests.support.hostile import OK, compile_requests, other_requests
from tests.support.patience import until_told


async def answer(stub, method, request):
    """Return the code that the service answers with."""
    try:
        await until_told(partial(call_unary, "constraint", getattr(stub, method), request, 30.0))
    except PaganticError as error:
        return error.code.value if error.code else type(error).__name__
    return OK


@pytest.mark.sampled
@pytest.mark.timeout(300)
async def test_every_hostile_input_has_its_code_and_the_service_is_well_afterwards(capsys):
    asked = [(name, "Compile", request, code) for name, request, code in compile_requests()]
    asked = sample([*asked, *other_requests()], 3)
    wrong, slowest = [], []
    async with running(workers=2) as stub:
        for name, method, request, code in asked:
            started_s = time.perf_counter()
            found = await answer(stub, method, request)
            slowest.append((time.perf_counter() - started_s, name, found))
            if found == "Internal" or (code and found != code):
                wrong.append((name, found, code))
            assert (await stub.RepairJson(rpc.RepairJsonRequest(text='{"a": '))).text == "{}", name
    slowest.sort(reverse=True)
    with capsys.disabled():
        lines = [f"  {took_s:.2f} s {found} {name}" for took_s, name, found in slowest[:8]]
        sys.stdout.write(f"\n{len(asked)} hostile inputs, slowest:\n" + "\n".join(lines) + "\n")
    assert wrong == []


async def test_a_message_beyond_the_limit_is_refused_by_the_transport():
    async with running(max_message_bytes=1024 * 1024) as stub:
        with pytest.raises(InvalidRequest):
            await call_unary("constraint", stub.RepairJson, rpc.RepairJsonRequest(text="x" * 2_000_000))
        assert (await stub.RepairJson(rpc.RepairJsonRequest(text="1"))).valid
