"""Requests under the ids of their callers: only their own tenant aborts them."""

import asyncio
from dataclasses import replace

import pytest

from pagantic_common.domain.calls.principal import LOCAL
from pagantic_common.domain.errors import Conflict, InvalidRequest
from pagantic_common.telemetry.scope import work_scope
from services.inference.core.generation import Delta
from services.inference.vllm.running import MAX_ABORTED, MAX_ID_BYTES, RunningRequests


def tenant(name):
    return work_scope(principal=replace(LOCAL, tenant=name))


async def one_then_silence():
    yield Delta(0, tokens=(1,))
    await asyncio.Event().wait()


async def nothing():
    for event in ():
        yield event


async def test_an_abort_ends_the_wait_for_the_next_event():
    requests, events = RunningRequests(), one_then_silence()
    with requests.running("a") as running:
        assert await running.next_of(events) == Delta(0, tokens=(1,))
        waiting = asyncio.ensure_future(running.next_of(events))
        await asyncio.sleep(0)
        requests.abort(["a"])
        assert await waiting is None
        assert running.is_aborted
        assert await running.next_of(events) is None
    assert len(requests) == 0


async def test_an_abort_while_the_wait_is_being_cancelled_changes_nothing():
    failures, loop = [], asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(context))
    requests, events = RunningRequests(), one_then_silence()
    with requests.running("a") as running:
        await running.next_of(events)
        waiting = asyncio.ensure_future(running.next_of(events))
        await asyncio.sleep(0)
        requests.abort(["a"])
        loop.call_soon(requests.abort, ["a"])
        assert await waiting is None
    assert failures == []


async def test_the_end_of_the_events_is_no_abort():
    with RunningRequests().running("a") as running:
        assert await running.next_of(nothing()) is None
        assert not running.is_aborted


async def test_a_cancelled_caller_is_cancelled():
    events = one_then_silence()
    with RunningRequests().running("a") as running:
        await running.next_of(events)
        waiting = asyncio.ensure_future(running.next_of(events))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_another_tenant_has_its_own_ids_and_aborts_only_those():
    requests = RunningRequests()
    with tenant("a"), requests.running("same") as mine:
        with tenant("b"), requests.running("same") as theirs:
            requests.abort(["same", "unknown"])
        assert (mine.is_aborted, theirs.is_aborted) == (False, True)


def test_an_id_that_runs_is_refused_until_it_has_ended():
    requests = RunningRequests()
    with requests.running("a"), pytest.raises(Conflict, match="request_id 'a' runs already"), requests.running("a"):
        pass
    with requests.running("a"):
        assert len(requests) == 1


@pytest.mark.parametrize("request_id", ["", "é" * (MAX_ID_BYTES // 2) + "a"])
def test_ids_are_bounded(request_id):
    with (
        pytest.raises(InvalidRequest, match=f"it must have between 1 and {MAX_ID_BYTES}"),
        RunningRequests().running(request_id),
    ):
        pass


def test_the_ids_of_one_abort_are_bounded():
    with pytest.raises(InvalidRequest, match=f"send at most {MAX_ABORTED}"):
        RunningRequests().abort(["a"] * (MAX_ABORTED + 1))
