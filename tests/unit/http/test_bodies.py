"""Bodies of requests: the thread for large ones, the count of their values, and the time of an upload."""

import asyncio
import json
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.settings import HttpSettings
from gateway.web import bodies as bodies_module
from gateway.web.bodies import MAX_VALUES, SMALL_BYTES, Bodies, RequestBody, Upload, check_values
from gateway.web.refusal import Refusal
from pagantic_common.domain.errors import InvalidRequest, Overloaded

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


async def test_a_request_counts_as_the_larger_of_its_bytes_and_its_answer():
    bodies = Bodies(HttpSettings(max_bodies_bytes=10_000), 10_000)
    body = RequestBody(bodies, "one")
    body.hold_stored(1_000)
    body.hold_answer(600, is_refusable=True)
    assert bodies.memory.held_by("one") == 1_000
    body.hold_answer(3_000, is_refusable=True)
    assert bodies.memory.held_by("one") == 3_000
    body.end_answer()
    assert bodies.memory.held_by("one") == 1_000
    body.release()
    assert bodies.memory.free == 10_000


async def test_an_answer_that_may_not_be_refused_counts_with_what_fits():
    bodies = Bodies(HttpSettings(max_bodies_bytes=10_000), 10_000)
    other, body = RequestBody(bodies, "two"), RequestBody(bodies, "one")
    other.hold_stored(4_000)
    body.hold_stored(1_000)
    with pytest.raises(Overloaded, match="the answer has 6000 bytes"):
        body.hold_answer(6_000, is_refusable=True)
    assert bodies.memory.held_by("one") == 1_000
    body.hold_answer(6_000, is_refusable=False)
    assert bodies.memory.held_by("one") == 5_000
    body.release()
    assert bodies.memory.free == 6_000


def values_in(value):
    """Count the values in JSON; an empty list or object counts as two."""
    if not isinstance(value, dict | list):
        return 1
    children = list(value.values()) if isinstance(value, dict) else value
    return 1 + (sum(map(values_in, children)) or 1)


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet=',[]{}:"\\a\U0001f600'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='",[{\\'), inner),
)


@given(st.lists(JSON) | st.dictionaries(st.text(), JSON), st.booleans(), st.sampled_from([None, 1]))
def test_the_values_of_a_body_are_counted_without_its_texts(value, is_ascii, indent):
    body = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies_module, "MAX_VALUES", values_in(value))
        check_values(body)
        patch.setattr(bodies_module, "MAX_VALUES", values_in(value) - 1)
        with pytest.raises(InvalidRequest, match="more than"):
            check_values(body)


@pytest.mark.parametrize("value", [[0] * MAX_VALUES, [[[[]] * 9] * 10] * 9999, [{"a": [{}] * 9}] * 9999])
def test_a_body_of_very_many_values_is_refused(value):
    with pytest.raises(InvalidRequest, match="more than"):
        check_values(json.dumps(value).encode())


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 1_000_000, b'\\"' * 1_000_000, b'"\\' * 1_000_000, b'",' * 1_000_000])
def test_texts_without_an_end_are_counted_in_little_time(body):
    began_s = time.process_time()
    with suppress(InvalidRequest):
        check_values(b"," * 2 + body + b"," * MAX_VALUES)
    assert time.process_time() - began_s < 1


def test_a_long_text_is_one_value():
    check_values(json.dumps({"text": ",[{" * MAX_VALUES}).encode())
    check_values(json.dumps([0] * (MAX_VALUES - 1)).encode())


async def test_an_upload_that_drips_ends():
    async def drip():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    upload = Upload(drip, max_bytes=1000, read_s=5, whole_s=0.2)
    with pytest.raises(Refusal, match=r"within 0\.2 s") as caught:
        async for _ in upload.parts():
            pass
    assert caught.value.status == 408
