import asyncio

import pytest

from pagantic_common.domain.errors import (
    Aborted,
    ErrorCode,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.testing.clock import FakeClock
from services.inference.app.models import COOL_DOWN_S, Models, ModelSpec, ServedModel


class Work:
    """A workload that does nothing but tell when it is closed."""

    def __init__(self, gate, on_close):
        self.gate = gate
        self.on_close = on_close

    async def close(self):
        await self.gate.wait()
        self.on_close()


class Shelf:
    """Loads models by name and remembers what was loaded and closed."""

    def __init__(self, *, limit=0, sizes=(("a", 4), ("b", 4), ("c", 4)), **options):
        self.clock = FakeClock()
        self.log = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closing = asyncio.Event()
        self.closing.set()
        self.failures = []
        self.models = Models(
            [ModelSpec(ModelInfo(name=name, context_window=8, capabilities=()), size) for name, size in sizes],
            self.load,
            memory_limit_bytes=limit,
            monotonic_s=self.clock.monotonic_s,
            **options,
        )

    async def load(self, spec):
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        self.log.append(f"+{spec.info.name}")

        return ServedModel(spec.info, Work(self.closing, lambda: self.log.append(f"-{spec.info.name}")))

    async def touch(self, name):
        async with self.models.use(name) as served:
            return served.info.name


async def test_a_model_is_loaded_at_its_first_use_and_once():
    shelf = Shelf()
    assert shelf.log == []
    assert await asyncio.gather(*(shelf.touch(name) for name in ("", "a", "b", "b"))) == ["a", "a", "b", "b"]
    assert sorted(shelf.log) == ["+a", "+b"]
    await shelf.models.close()
    assert sorted(shelf.log) == ["+a", "+b", "-a", "-b"]


async def test_the_least_recently_used_model_makes_room():
    shelf = Shelf(limit=8)
    for name in ("a", "b", "a", "c"):
        await shelf.touch(name)
    assert shelf.log == ["+a", "+b", "-b", "+c"]
    assert [served.info.name for served in shelf.models.loaded] == ["a", "c"]


async def test_a_model_in_use_is_never_unloaded():
    shelf = Shelf(limit=8)
    async with shelf.models.use("a"), shelf.models.use("b"):
        with pytest.raises(Overloaded) as refused:
            await shelf.touch("c")
        assert refused.value.code is ErrorCode.INFERENCE_OVERLOADED
        assert refused.value.retry_after_s
    assert await shelf.touch("c") == "c"


async def test_an_unknown_alias_is_told_what_there_is():
    with pytest.raises(InvalidRequest, match="'a', 'b', 'c'") as refused:
        await Shelf().touch("x")
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_a_caller_that_gives_up_does_not_stop_the_loading():
    shelf = Shelf()
    shelf.gate.clear()
    first = asyncio.create_task(shelf.touch("a"))
    await asyncio.sleep(0)
    second = asyncio.create_task(shelf.touch("a"))
    await asyncio.sleep(0)
    first.cancel()
    shelf.gate.set()
    assert await second == "a"
    assert shelf.log == ["+a"]


async def test_a_failed_loading_is_told_and_tried_again():
    shelf = Shelf()
    shelf.failures.append(PreconditionFailed("no such file"))
    with pytest.raises(PreconditionFailed):
        await shelf.touch("a")
    with pytest.raises(PreconditionFailed, match="no such file"):  # it is not tried again at once
        await shelf.touch("a")
    assert await shelf.touch("b") == "b"
    shelf.clock.advance(COOL_DOWN_S + 0.1)
    assert await shelf.touch("a") == "a"


async def test_a_loading_that_fails_unexpectedly_is_not_tried_again_at_once():
    shelf = Shelf()
    shelf.failures.append(MemoryError())
    with pytest.raises(MemoryError):
        await shelf.touch("a")
    with pytest.raises(Unavailable, match="tried again in") as refused:
        await shelf.touch("a")
    assert refused.value.retry_after_s <= COOL_DOWN_S
    assert shelf.log == []


async def test_two_models_in_the_room_of_one_do_not_take_turns_at_every_request():
    shelf = Shelf(limit=4, min_residence_s=5.0)
    await shelf.touch("a")
    shelf.clock.advance(2)
    for _ in range(10):
        with pytest.raises(Overloaded, match="less than 5 s ago") as refused:
            await shelf.touch("b")
        assert 0 < refused.value.retry_after_s <= 3
    shelf.clock.advance(3)
    assert await shelf.touch("b") == "b"
    assert shelf.log == ["+a", "-a", "+b"]


async def test_a_model_of_another_engine_takes_no_room_and_is_not_unloaded_for_it():
    shelf = Shelf(limit=4, sizes=(("a", 4), ("far", 0), ("c", 9)))
    await shelf.touch("far")
    await shelf.touch("c")  # over the limit, and nothing else is loaded here
    await shelf.touch("far")
    await shelf.touch("a")
    assert shelf.log == ["+far", "+c", "-c", "+a"]


async def test_an_unloaded_model_is_loaded_again_at_its_next_use():
    shelf = Shelf()
    await shelf.touch("b")
    assert await shelf.models.unload("b")
    assert not await shelf.models.unload("b")
    assert [state.is_loaded for state in shelf.models.states] == [False, False, False]
    await shelf.touch("b")
    assert shelf.log == ["+b", "-b", "+b"]


async def test_a_model_in_use_is_not_unloaded_on_demand():
    shelf = Shelf()
    async with shelf.models.use("a"):
        assert [state.running for state in shelf.models.states] == [1, 0, 0]
        with pytest.raises(Aborted, match="'a' is in use, requests: 1"):
            await shelf.models.unload("")
    assert await shelf.models.unload("")
    assert shelf.log == ["+a", "-a"]


async def test_a_request_that_comes_with_an_unloading_gets_the_model_that_is_loaded_again():
    shelf = Shelf()
    await shelf.touch("a")

    async def use():
        async with shelf.models.use("a"):
            await asyncio.sleep(0)
            return list(shelf.log)

    _, log = await asyncio.gather(shelf.models.unload("a"), use())
    assert log == ["+a", "-a", "+a"]


async def test_a_model_whose_unloading_was_given_up_is_gone_before_it_is_loaded_again():
    shelf = Shelf()
    await shelf.touch("a")
    shelf.closing.clear()
    unloading = asyncio.create_task(shelf.models.unload("a"))
    await asyncio.sleep(0)
    unloading.cancel()
    using = asyncio.create_task(shelf.touch("a"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert shelf.log == ["+a"]
    shelf.closing.set()
    await using
    assert shelf.log == ["+a", "-a", "+a"]


async def test_an_unknown_model_is_not_unloaded():
    with pytest.raises(InvalidRequest, match="no engine serves model 'x'"):
        await Shelf().models.unload("x")
