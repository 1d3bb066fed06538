"""A standby of PostgreSQL becomes the primary under load."""

import asyncio
from itertools import count

import psycopg

from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import Unavailable
from pagantic_common.rpc.call import call_unary
from tests.support.needs import POSTGRESQL, skip_without
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.postgres import find_programs, postgres_server

CALLERS = 4
FAST = {"resumes_plans": True}


async def test_no_acknowledged_execution_is_lost_when_a_standby_takes_over(tmp_path):
    programs = find_programs()
    if programs is None:
        skip_without(POSTGRESQL)
    with postgres_server(programs, is_safe=True) as primary:
        primary.start()
        with primary.standby() as standby:
            with psycopg.connect(primary.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
            hosts = "&".join(f"host={one.url.split('@')[1].split('/')[0]}" for one in (primary, standby))
            url = f"postgresql://pagantic@/postgres?{hosts}&target_session_attrs=read-write"
            async with (
                orchestrator(tmp_path, url=url, owner="a", presence=FAST) as one,
                orchestrator(tmp_path, url=url, owner="b", presence=FAST) as other,
            ):
                acknowledged, failed = await fail_over((one, other), primary, standby)
                for request_id in acknowledged:
                    asked = pb.GetExecutionRequest(request_id=request_id)
                    reply = await call_unary("orchestrator", one.GetExecution, asked)
                    assert reply.execution.response.content == "hello"
    assert failed


async def fail_over(stubs, primary, standby):
    """Send requests until well after the primary is killed; return the acknowledged ids, and the errors met."""
    acknowledged, failed, numbers, is_over = [], [], count(), asyncio.Event()

    async def call(stub):
        while not is_over.is_set():
            request_id = f"r{next(numbers)}"
            while True:
                try:
                    assert (await execute(stub, system_request(request_id=request_id), 30)).content == "hello"
                except Unavailable as error:
                    failed.append(type(error))
                    await asyncio.sleep(error.retry_after_s or 0.5)
                else:
                    acknowledged.append(request_id)
                    break

    callers = [asyncio.create_task(call(stubs[number % 2])) for number in range(CALLERS)]
    await asyncio.sleep(2)
    await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.sleep(1)
    before = len(acknowledged)
    assert before
    await asyncio.to_thread(standby.promote)
    async with asyncio.timeout(60):
        while len(acknowledged) < before + 20:  # noqa: ASYNC110 - there is no event of it
            await asyncio.sleep(0.1)
    is_over.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*callers)
    return acknowledged, failed
