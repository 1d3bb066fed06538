"""Reading requests: bounded in bytes, threads and waiting calls, and never outlived by the model."""

import asyncio
import threading

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, Unavailable
from services.inference.app.preparation import THREADS, Preparation


class SlowTokenizer:
    """A token per byte; each call waits for the gate and says when it is inside."""

    longest_token_bytes = 4

    def __init__(self):
        self.gate = threading.Event()
        self.inside = threading.Semaphore(0)
        self.threads = []
        self.is_freed = False

    def tokenize(self, text, *, add_special, parse_special):
        self.threads.append(threading.current_thread())
        self.inside.release()
        self.gate.wait(60)
        assert not self.is_freed, "used after it was freed"
        return list(text.encode())

    def detokenize(self, tokens, *, with_special):
        return bytes(self.tokenize("x", add_special=False, parse_special=False)) * len(tokens)


class Panic(BaseException):
    """As pyo3 raises it: not an Exception."""


@pytest.fixture
def tokenizer():
    return SlowTokenizer()


@pytest.fixture
async def preparation(tokenizer):
    made = Preparation(tokenizer, window_tokens=8, max_waiting=3)
    yield made
    tokenizer.gate.set()
    await made.close()


async def inside(tokenizer):
    assert await asyncio.to_thread(tokenizer.inside.acquire, timeout=5)


@pytest.mark.parametrize("text", ["x" * 33, "é" * 17, "😀" * 9, "x" * 4_000_000])
async def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(tokenizer, preparation, text):
    with pytest.raises(InvalidRequest, match="at most 32") as caught:
        await preparation.tokenize(text, add_special=True, parse_special=False)
    assert caught.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED
    with pytest.raises(InvalidRequest, match=r"texts\[1\]"):
        await preparation.count(["", text])
    assert tokenizer.threads == []


async def test_text_that_may_fit_is_tokenized(tokenizer, preparation):
    tokenizer.gate.set()
    assert len(await preparation.tokenize("x" * 32, add_special=True, parse_special=False)) == 32
    assert await preparation.count(["x" * 32, "é" * 16, ""]) == [32, 32, 0]


async def test_tokens_beyond_the_window_are_not_detokenized_and_others_not_on_the_loop(tokenizer, preparation):
    tokenizer.gate.set()
    with pytest.raises(InvalidRequest, match="the context window holds 8"):
        await preparation.detokenize([1] * 9, with_special=False)
    assert tokenizer.threads == []
    assert await preparation.detokenize([1] * 8, with_special=False) == b"x" * 8
    assert tokenizer.threads[0] is not threading.current_thread()


async def test_no_more_calls_wait_than_the_limit(tokenizer, preparation):
    calls = [asyncio.create_task(preparation.count(["x"])) for _ in range(THREADS + 3)]
    for _ in range(THREADS):
        await inside(tokenizer)
    with pytest.raises(Overloaded) as caught:
        await preparation.count(["x"])
    assert caught.value.code is ErrorCode.INFERENCE_OVERLOADED
    assert caught.value.retry_after_s
    tokenizer.gate.set()
    assert await asyncio.gather(*calls) == [[1]] * (THREADS + 3)
    assert await preparation.count(["x"]) == [1]


async def test_closing_waits_for_the_thread_of_a_caller_that_has_gone(tokenizer, preparation):
    call = asyncio.create_task(preparation.count(["x"]))
    await inside(tokenizer)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    closing = asyncio.create_task(preparation.close())
    done, _ = await asyncio.wait([closing], timeout=0.2)
    assert not done
    tokenizer.gate.set()
    await closing
    tokenizer.is_freed = True
    with pytest.raises(Unavailable):
        await preparation.count(["x"])


async def test_a_panic_of_a_library_is_an_error_of_its_call_alone(tokenizer, preparation):
    tokenizer.gate.set()

    def work():
        raise Panic("of a library")

    with pytest.raises(RuntimeError, match="panicked"):
        await preparation.run(work)
    assert await preparation.count(["x"]) == [1]
