"""Bodies of requests: the thread for large ones, the count of their values, and the time of an upload."""

import asyncio
import threading

import pytest

from gateway.http.settings import HttpSettings
from gateway.web.bodies import MAX_VALUES, SMALL_BYTES, Bodies, RequestBody, Upload, check_values
from gateway.web.refusal import Refusal
from pagantic_common.domain.errors import InvalidRequest

LARGE = b"x" * (SMALL_BYTES + 1)


@pytest.fixture
def bodies():
    return Bodies(HttpSettings(), 1024)


async def test_work_on_a_large_body_has_a_thread(bodies):
    body = RequestBody(bodies, "one")
    assert await body.work_on(LARGE[1:], threading.get_ident) == threading.get_ident()
    assert await body.work_on(LARGE, threading.get_ident) != threading.get_ident()


async def test_a_caller_has_one_thread_and_keeps_it_when_it_leaves(bodies):
    release = threading.Event()
    first = asyncio.create_task(RequestBody(bodies, "one").work_on(LARGE, release.wait))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(RequestBody(bodies, "one").work_on(LARGE, int))
    assert await RequestBody(bodies, "two").work_on(LARGE, int) == 0
    first.cancel()
    await asyncio.sleep(0.05)
    assert not second.done()
    release.set()
    assert await asyncio.wait_for(second, 5) == 0


@pytest.mark.parametrize(
    "value", [[0] * MAX_VALUES, [[[] for _ in range(MAX_VALUES // 2)]] * 2, [{"a": [{}] * 9}] * 9999]
)
def test_a_value_of_very_many_values_is_refused(value):
    with pytest.raises(InvalidRequest, match="more than"):
        check_values(value)


@pytest.mark.parametrize("value", ["x" * 2 * MAX_VALUES, 1, None, [0] * (MAX_VALUES - 1), {"a": {"b": [[]]}}])
def test_other_values_are_taken(value):
    check_values(value)


async def test_an_upload_that_drips_ends():
    async def drip():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    upload = Upload(drip, max_bytes=1000, read_s=5, whole_s=0.2)
    with pytest.raises(Refusal, match=r"within 0\.2 s") as caught:
        async for _ in upload.parts():
            pass
    assert caught.value.status == 408
