"""Prefixes outside the process: what comes back to a new replica, for whom, and what failures of the store cost."""

import asyncio
import threading

import numpy as np
import pytest

from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import Internal, Overloaded, Unavailable
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.memory_prefix_store import MemoryPrefixStore
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.app import prefix_storage
from services.inference.app.prefix_storage import MAX_WAITING, BlockStorage, ModelStorage
from services.inference.app.scoring import score_continuations
from services.inference.core.generation import Completed, Delta, InferenceRequest
from services.inference.core.scheduling.stored_blocks import BLOCK_TOKENS
from tests.support.inference_app import computed, generation_over

WINDOW = 2048
PROMPT = "".join(chr(97 + index % 26) for index in range(3 * BLOCK_TOKENS + 100))
WHOLE = 3 * BLOCK_TOKENS  # tokens of its blocks


async def until(is_so):
    for _ in range(20_000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")


def reading_threads():
    return sum(thread.name == "block-reader" for thread in threading.enumerate())


class Replica:
    """A replica of the inference app over a scripted engine and a store that others share."""

    def __init__(self, store, *, digest="model", max_queued_bytes=1 << 20, read_s=2.0, **options):
        self.engine = ScriptedEngine("xyz", context_window=WINDOW)
        self.storage = BlockStorage(store, max_queued_bytes=max_queued_bytes)
        options = {"max_parked_bytes": 10_000, **options}
        self.generation = generation_over(
            self.engine, storage=ModelStorage(self.storage, digest), read_s=read_s, **options
        )

    async def ask(self, prompt=PROMPT, tenant="default", max_tokens=3):
        """Return the text of an answer, and how much of the prompt was cached."""
        text = ""
        with work_scope(principal=work_of(tenant)):
            async for event in self.generation.infer(InferenceRequest(prompt, max_tokens=max_tokens)):
                match event:
                    case Delta():
                        text += event.content
                    case Completed():
                        return text, event.usage.cached_prompt_tokens
        raise AssertionError("no end")

    async def close(self):
        await self.generation.close()
        self.storage.close()


@pytest.fixture
async def replica_of():
    """Makes replicas, which are closed at the end."""
    made = []

    def make(store, **options):
        made.append(Replica(store, **options))
        return made[-1]

    yield make
    for replica in made:
        await replica.close()


@pytest.fixture
async def store(replica_of):
    """A store that has a prompt of the default tenant, which was used twice."""
    store = MemoryPrefixStore()
    await warm(replica_of(store))
    return store


async def warm(replica, **options):
    for _ in range(2):
        await replica.ask(**options)
    await replica.close()


async def test_a_prompt_that_came_once_is_not_stored_and_its_blocks_are_when_it_comes_again(replica_of):
    store = MemoryPrefixStore()
    replica = replica_of(store)
    await replica.ask()
    await replica.ask(PROMPT[:300] + "!" * 300)
    await replica.close()
    assert len(store.blocks) == 1
    assert replica.storage.counts.written_tokens == BLOCK_TOKENS


async def test_a_new_replica_computes_what_is_not_stored(replica_of, store):
    replica = replica_of(store)
    assert await replica.ask() == ("xyz", WHOLE)
    assert computed(replica.engine) <= len(PROMPT) - WHOLE + 31  # with drafts
    assert replica.storage.counts.read_tokens == WHOLE
    assert await replica.ask() == ("xyz", len(PROMPT) - 1)
    assert len(store.reads) == 3  # the second time all is in the cache


async def test_a_prompt_that_goes_on_differently_gets_what_both_have_in_common(replica_of, store):
    replica = replica_of(store)
    assert await replica.ask(PROMPT[: 2 * BLOCK_TOKENS + 10] + "!" * 300) == ("xyz", 2 * BLOCK_TOKENS)
    assert await replica.ask() == ("xyz", WHOLE)


async def test_a_prompt_of_whole_blocks_is_computed_from_its_last_token_on(replica_of, store):
    assert await replica_of(store).ask(PROMPT[:WHOLE]) == ("xyz", WHOLE - 1)


async def test_scores_find_stored_prefixes_and_one_score_stores_nothing(replica_of, store):
    replica = replica_of(store)
    _, usage = await score_continuations(replica.generation, PROMPT, ["xx", "yy", "zz"])
    assert usage.cached_prompt_tokens == WHOLE
    fresh = MemoryPrefixStore()
    replica = replica_of(fresh)
    await score_continuations(replica.generation, PROMPT, ["xx", "yy", "zz"])
    await replica.close()
    assert not fresh.blocks


async def test_another_tenant_finds_nothing(replica_of, store):
    replica = replica_of(store)
    assert await replica.ask(tenant="other") == ("xyz", 0)
    assert await replica.ask() == ("xyz", WHOLE)


async def test_what_the_operator_declared_shared_comes_back_for_every_tenant(replica_of):
    store, shared = MemoryPrefixStore(), [PROMPT]
    options = {"shared_prompts": shared, "template": "{{ messages[0].content }}"}
    await warm(replica_of(store, **options), tenant="a")
    text, cached = await replica_of(store, **options).ask(tenant="b")
    assert (text, cached) == ("xyz", WHOLE)


async def test_another_model_finds_nothing(replica_of, store):
    assert await replica_of(store, digest="another").ask() == ("xyz", 0)


async def change_format(replica, cell_format):
    def change():
        replica.engine.cell_format = cell_format
        replica.engine.parked.clear()

    await asyncio.wrap_future(replica.generation.loop.when_idle(change))


async def test_an_engine_of_another_format_finds_nothing(replica_of, store):
    replica = replica_of(store)
    await change_format(replica, "another")
    assert await replica.ask() == ("xyz", 0)
    await change_format(replica, "scripted")
    assert await replica.ask() == ("xyz", WHOLE)


async def test_an_engine_whose_cells_cannot_be_copied_stores_and_reads_nothing(replica_of):
    store = MemoryPrefixStore()
    replica = replica_of(store)
    await change_format(replica, "")
    await warm(replica)
    assert (len(store.blocks), store.reads) == (0, [])


async def test_nothing_is_adopted_while_the_engine_changes(replica_of, store):
    replica = replica_of(store)
    changing, may_end = threading.Event(), threading.Event()

    def change():
        changing.set()
        may_end.wait(60)

    loop, adopted = replica.generation.loop, []
    adopt = loop.adopt
    loop.adopt = lambda *given: adopted.append(adopt(*given)) or adopted[-1]
    changed = loop.when_idle(change)
    await asyncio.to_thread(changing.wait, 10)
    asked = asyncio.create_task(replica.ask())
    await until(lambda: adopted)
    may_end.set()
    await asyncio.wrap_future(changed)
    assert await asked == ("xyz", 0)
    assert adopted == [False]


async def test_requests_with_the_same_beginning_read_it_once(replica_of, store):
    replica = replica_of(store)
    asked = await asyncio.gather(*(replica.ask(f"{PROMPT[:WHOLE]}{number}") for number in range(8)))
    assert {text for text, _ in asked} == {"xyz"}
    assert min(cached for _, cached in asked) >= WHOLE
    assert len(store.reads) == 3


async def test_what_is_read_fits_into_the_memory_for_parked_cells(replica_of, store):
    replica = replica_of(store, max_parked_bytes=2 * BLOCK_TOKENS + 10)
    assert await replica.ask() == ("xyz", 2 * BLOCK_TOKENS)
    assert replica_of(store, max_parked_bytes=100).generation is not None
    assert await replica_of(store, max_parked_bytes=100).ask() == ("xyz", 0)


async def test_a_full_service_reads_nothing(replica_of, store):
    replica = replica_of(store)

    def refuse(_tenant):
        if refuse.calls:
            raise Overloaded("full")
        refuse.calls += 1

    refuse.calls = 0
    replica.generation.loop.check_capacity = refuse
    with pytest.raises(Overloaded):
        await replica.ask()
    assert store.reads == []


# ---- failures


class FailingStore(MemoryPrefixStore):
    def read(self, name, max_bytes):
        raise RuntimeError(f"{name} of {max_bytes}")

    def write(self, name, cells):
        raise RuntimeError(f"{name} of {cells.size}")


async def test_a_store_that_fails_costs_time_and_no_answer(replica_of, store):
    failing = FailingStore()
    failing.blocks = store.blocks
    assert await replica_of(failing).ask() == ("xyz", 0)
    replica = replica_of(FailingStore())
    await warm(replica)
    assert replica.storage.counts.dropped_blocks == 3


class StuckStore(MemoryPrefixStore):
    """Reads nothing before it may."""

    def __init__(self):
        super().__init__()
        self.may_go_on = threading.Event()

    def read(self, name, max_bytes):
        self.may_go_on.wait(30)
        return super().read(name, max_bytes)


async def test_a_store_that_is_stuck_delays_a_request_once_and_has_one_thread(replica_of, store, monkeypatch):
    stuck = StuckStore()
    stuck.blocks = store.blocks
    replica = replica_of(stuck, read_s=0.05)
    touched = []
    monkeypatch.setattr(stuck, "touch", lambda name: touched.append(name) or True)
    for number in range(3):
        assert (await replica.ask(tenant=f"tenant {number}"))[1] == 0
    assert reading_threads() == 1
    assert len(touched) == 1
    stuck.may_go_on.set()
    await until(lambda: reading_threads() == 0)
    assert await replica_of(stuck).ask() == ("xyz", WHOLE)


async def test_few_prompts_wait_for_a_slow_store_and_the_others_are_computed(replica_of, store):
    stuck = StuckStore()
    stuck.blocks = store.blocks
    replica = replica_of(stuck, read_s=30)
    prompts = [f"{number}{PROMPT}" for number in range(MAX_WAITING)]
    waiting = [asyncio.create_task(replica.ask()), *(asyncio.create_task(replica.ask(prompt)) for prompt in prompts)]
    await until(lambda: len(replica.storage._waiting) == MAX_WAITING)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [("xyz", 0)]
    stuck.may_go_on.set()
    assert {text for text, _ in await asyncio.gather(*waiting)} == {"xyz"}
    assert not replica.storage._waiting


async def test_cells_that_the_engine_cannot_copy_are_not_stored(replica_of):
    store = MemoryPrefixStore()
    replica = replica_of(store)
    replica.engine.copy_out = lambda *_: np.empty(0, np.uint8)
    for _ in range(2):
        await replica.ask()
    await until(lambda: replica.storage.counts.dropped_blocks >= 3)
    assert not store.blocks


async def test_a_store_that_was_slow_is_read_again_after_some_time(replica_of, store, monkeypatch):
    monkeypatch.setattr(prefix_storage, "REST_S", 0.1)
    stuck = StuckStore()
    stuck.blocks = store.blocks
    replica = replica_of(stuck, read_s=2.0)
    assert await replica.ask(PROMPT[:BLOCK_TOKENS]) == ("xyz", 0)
    stuck.may_go_on.set()
    await asyncio.sleep(0.2)
    assert await replica.ask() == ("xyz", WHOLE)


async def test_a_caller_that_gives_up_while_its_prompt_is_read_leaves_nothing_behind(replica_of, store):
    stuck = StuckStore()
    stuck.blocks = store.blocks
    replica = replica_of(stuck)
    asked = asyncio.create_task(replica.ask())
    await until(lambda: replica.storage._is_reading)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    stuck.may_go_on.set()
    await until(lambda: not replica.storage._is_reading)
    assert await replica.ask() == ("xyz", WHOLE)


async def test_a_request_whose_prompt_is_read_while_the_model_closes_is_told_so(replica_of, store):
    stuck = StuckStore()
    stuck.blocks = store.blocks
    replica = replica_of(stuck)
    asked = asyncio.create_task(replica.ask())
    await until(lambda: replica.storage._is_reading)
    await asyncio.to_thread(replica.generation.loop.close)
    stuck.may_go_on.set()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(asked, 60)


class StuckWriter(MemoryPrefixStore):
    """Writes nothing before it may."""

    def __init__(self):
        super().__init__()
        self.may_write = threading.Event()

    def write(self, name, cells):
        self.may_write.wait(30)
        return super().write(name, cells)


async def test_a_slow_store_drops_what_it_cannot_take_and_is_offered_it_again(replica_of):
    store = StuckWriter()
    replica = replica_of(store, max_queued_bytes=2 * 4 * (BLOCK_TOKENS + 1))
    for _ in range(2):
        assert (await replica.ask())[0] == "xyz"
    await until(lambda: replica.storage.counts.dropped_blocks)
    store.may_write.set()
    await until(lambda: len(store.blocks) == 2)
    await replica.ask()
    await replica.close()
    assert len(store.blocks) == 3


async def test_a_store_that_is_stuck_costs_the_engine_no_copies(replica_of):
    store = StuckWriter()
    replica, copies = replica_of(store, max_queued_bytes=4 * (BLOCK_TOKENS + 1)), []
    copy_out = replica.engine.copy_out
    replica.engine.copy_out = lambda *part: copies.append(part) or copy_out(*part)
    for _ in range(5):
        await replica.ask()
    await until(lambda: replica.storage.counts.dropped_blocks >= 6)
    assert len(copies) == 1
    store.may_write.set()


async def test_blocks_that_the_engine_refuses_are_computed_and_the_store_is_read_no_more(replica_of, store):
    replica = replica_of(store)
    replica.engine.refuses_adopted = True
    running = asyncio.create_task(replica.ask("another prompt " * 40, max_tokens=3))
    assert await replica.ask() == ("xyz", 0)
    assert (await running)[0] == "xyz"
    reads = len(store.reads)
    assert await replica.ask(PROMPT, tenant="default") == ("xyz", len(PROMPT) - 1)
    assert await replica.ask("!" + PROMPT) == ("xyz", 0)
    assert len(store.reads) == reads


async def test_an_engine_that_refuses_its_own_copies_too_makes_none_any_more(replica_of, store):
    replica, refused = replica_of(store), []

    def refuse(key, *_place):
        refused.append(key)
        raise Internal("the copy is refused")

    replica.engine.unpark = refuse
    for _ in range(3):
        for prompt in (PROMPT, "!" + PROMPT):  # neither stays in the cache beside the other
            assert (await replica.ask(prompt))[0] == "xyz"
    assert len(refused) == 2  # a stored one and an own one
    assert not replica.generation.loop.scheduler.tree.parked.entries


async def test_a_block_that_another_replica_has_written_is_not_written_again(replica_of, store):
    written = dict(store.blocks)
    replica = replica_of(store, max_parked_bytes=10)  # It has no room for what it could read.
    await warm(replica)
    assert replica.storage.counts.written_tokens == 0
    assert all(np.array_equal(store.blocks[name], cells) for name, cells in written.items())
