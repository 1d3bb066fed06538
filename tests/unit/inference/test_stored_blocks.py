"""The names of stored blocks, and the choice of blocks that are stored."""

import hypothesis.strategies as st
from hypothesis import given, settings

from services.inference.core.scheduling import stored_blocks
from services.inference.core.scheduling.branches import Finished, Prompted
from services.inference.core.scheduling.operations import Adopt, Drop, Save
from services.inference.core.scheduling.parked_prefixes import common_length
from services.inference.core.scheduling.stored_blocks import (
    BLOCK_TOKENS,
    MAX_PENDING,
    RENEW_S,
    SAVES_PER_STEP,
    BlockNames,
    Saving,
    name_blocks,
    root_of,
)
from tests.support.examples import examples
from tests.unit.inference.batching_model import ROOT, Bench
from tests.unit.inference.test_batching import BENCHES, REQUESTS, play
from tests.unit.inference.test_cache_owners import keys_of, said_by

TOKENS = st.lists(st.integers(0, 2), max_size=12)
CALLS = st.tuples(TOKENS, st.sampled_from(["a", "b", ""]), st.integers(0, 12))
PROMPT = list(range(100, 140))


def names_of(tokens, tenant="a", shared=0, root=ROOT, block=3):
    return name_blocks(root, tokens, tenant=tenant, shared_tokens=shared, block_tokens=block).names


def owned(tokens, tenant, shared, end):
    """What the name of a block must depend on, and nothing else: its owner follows from the blocks before it."""
    owners = [None if block_end <= shared else tenant for block_end in range(3, end + 1, 3)]
    return (owners, tokens[:end])


@given(CALLS, CALLS)
def test_names_are_the_same_where_all_tokens_so_far_and_their_owners_are_and_nowhere_else(first, second):
    one, other = names_of(*first), names_of(*second)
    assert (len(one), len(other)) == (len(first[0]) // 3, len(second[0]) // 3)
    for index, name in enumerate(one):
        for position, another in enumerate(other):
            is_same = owned(*first, 3 * index + 3) == owned(*second, 3 * position + 3)
            assert (name == another) == is_same


def test_a_block_that_is_declared_shared_only_in_part_belongs_to_its_tenant():
    assert names_of(PROMPT, "a", 6)[:2] == names_of(PROMPT, "b", 8)[:2]
    assert names_of(PROMPT, "a", 8)[2] != names_of(PROMPT, "b", 8)[2]


def test_engines_that_differ_share_no_name():
    roots = [root_of("model", "on"), root_of("model", "off"), root_of("modelon"), root_of("modelo", "n")]
    assert len({names_of(PROMPT, root=root)[0] for root in roots}) == 4
    assert root_of("model", "on") == roots[0]


def test_names_are_of_whole_blocks():
    sizes = (0, BLOCK_TOKENS - 1, BLOCK_TOKENS, 2 * BLOCK_TOKENS)
    assert [len(name_blocks(ROOT, [1] * size, tenant="a", shared_tokens=0).names) for size in sizes] == [0, 0, 1, 2]


# ---- which blocks are stored


def reused(saving, count, now_s=0.0, cached=None):
    """Let the blocks of a prompt be used again, and return those that are taken, without a bound."""
    names = tuple(f"block {index}" for index in range(count))
    cached = count * saving.block_tokens if cached is None else cached
    saving.reuse(BlockNames(saving.root, names), PROMPT, cached, now_s)
    return [save.name for save in saving.take(1000, lambda _keys, _length: 7)]


def test_the_first_block_of_a_prompt_is_stored_last_and_none_again_before_some_time():
    saving = Saving(ROOT, block_tokens=10)
    assert reused(saving, 3) == ["block 2", "block 1", "block 0"]
    assert reused(saving, 4, RENEW_S - 1) == ["block 3"]
    assert reused(saving, 3, RENEW_S) == ["block 2", "block 1", "block 0"]
    saving.forget("block 1")
    assert reused(saving, 3, RENEW_S) == ["block 1"]


def test_only_whole_blocks_that_were_cached_are_stored():
    assert reused(Saving(ROOT, block_tokens=10), 3, cached=29) == ["block 1", "block 0"]
    assert reused(Saving(ROOT, block_tokens=10), 3, cached=9) == []


def test_names_of_another_root_are_not_stored():
    saving = Saving(ROOT, block_tokens=10)
    saving.reuse(BlockNames(root_of("before"), ("block",)), PROMPT, 10, 0.0)
    assert not saving.has_pending
    saving.reuse(BlockNames(ROOT, ("block",)), PROMPT, 10, 0.0)
    saving.restart(root_of("another"))
    assert not saving.has_pending


def test_a_block_that_left_the_cache_is_stored_when_it_is_used_again():
    saving = Saving(ROOT, block_tokens=10)
    saving.reuse(BlockNames(ROOT, ("block 0",)), PROMPT, 10, 0.0)
    assert saving.take(1, lambda _keys, _length: None) == []
    assert reused(saving, 1) == ["block 0"]


def test_what_waits_and_what_is_known_is_bounded():
    saving = Saving(ROOT, block_tokens=1, max_known=2 * MAX_PENDING)
    assert len(reused(saving, MAX_PENDING + 10)) == MAX_PENDING
    assert reused(saving, MAX_PENDING + 10) == [f"block {MAX_PENDING + index}" for index in range(9, -1, -1)]
    saving.know([f"other {index}" for index in range(2 * MAX_PENDING)], 0.0)
    assert len(reused(saving, 3)) == 3


def test_a_prompt_that_comes_once_is_not_stored_and_one_that_comes_again_is(monkeypatch):
    monkeypatch.setattr(stored_blocks, "RENEW_S", 5.0)
    bench = Bench(block=8, idle=200)
    bench.submit(PROMPT)
    bench.run()
    assert bench.stored == {}
    bench.submit([*PROMPT[:30], 1, 2, 3])
    bench.run()
    assert len(bench.stored) == 3
    bench.stored.clear()
    bench.now = 10.0  # later, what is still used is stored again
    bench.submit(PROMPT)
    bench.run()
    assert len(bench.stored) == 4


def test_a_step_stores_few_blocks():
    bench = Bench(block=2, idle=200, step_tokens=64)
    for _ in range(2):
        bench.submit(PROMPT)
        bench.run()
    saved = [sum(isinstance(operation, Save) for operation in operations) for operations, _ in bench.trace]
    assert sum(saved) == len(bench.stored) == (len(PROMPT) - 1) // 2
    assert max(saved) == SAVES_PER_STEP


def test_even_a_request_that_ends_at_once_is_stored_where_nothing_stays_in_the_cache():
    bench = Bench(block=8, idle=0, parked=200)
    for _ in range(2):
        bench.submit(PROMPT, max_tokens=1)
        bench.run()
    assert len(bench.stored) == 4


def test_a_new_replica_computes_only_what_is_not_stored():
    first = Bench(block=8, parked=200)
    for _ in range(2):
        first.submit(PROMPT)
        first.run()
    second = Bench(block=8, parked=200, stored=first.stored)
    number = second.submit([*PROMPT[:35], 1, 2])
    assert second.scheduler.queued_prompt_tokens == 37 - 32
    second.run()
    assert second.of(Prompted, number)[0].cached_prompt_tokens == 32
    other = second.submit(PROMPT, tenant="b")
    second.run()
    assert second.of(Prompted, other)[0].cached_prompt_tokens == 0


def test_an_engine_that_changed_adopts_nothing_of_before():
    bench = Bench(block=8, parked=200)
    for _ in range(2):
        bench.submit(PROMPT)
        bench.run()
    scheduler = bench.scheduler
    scheduler.renew(Bench(parked=200).scheduler.tree, scheduler.limits, root_of("another"))
    bench.submit(PROMPT)
    assert not bench.adopted


def tokens_in(cells):
    return cells.view("<i4").size - 1  # The first number is the position.


def test_pieces_that_lost_their_place_before_the_engine_took_them_are_not_kept():
    first = Bench(block=8, parked=400)
    for _ in range(2):
        for number in range(4):
            first.submit([number, *PROMPT])
            first.run()
    second = Bench(block=8, parked=100, stored=first.stored)
    for number in range(4):
        second.submit([number, *PROMPT])
    assert second.adopted == 4
    adopted = [operation for operation in second.scheduler.tree.operations if isinstance(operation, Adopt)]
    assert len(second.scheduler.tree.parked.entries) == 2  # More have no room.
    assert sum(tokens_in(one.cells) for one in adopted) == second.scheduler.tree.parked.parked_tokens
    second.run()
    assert len(second.of(Finished)) == 4


def test_what_a_failed_plan_left_undone_is_done_afterwards():
    bench = Bench(block=8, idle=0, parked=60)
    for number in range(3):
        bench.submit([number, *PROMPT], max_tokens=1)
    while not any(isinstance(one, Drop) for one in bench.scheduler.tree.operations):
        bench.step()
    plan = bench.scheduler.decide(0.0)
    bench.scheduler.compute_again(plan)
    bench.run()
    kept = sum(map(tokens_in, bench.engine.parked.values()))
    assert kept == bench.scheduler.tree.parked.parked_tokens
    assert len(bench.of(Finished)) == 3


def test_blocks_that_a_failed_plan_did_not_store_are_offered_again():
    bench = Bench(block=8, idle=200)
    bench.submit(PROMPT)
    bench.run()
    bench.submit(PROMPT)
    while not any(isinstance(one, Save) for one in bench.scheduler.tree.operations):
        bench.step()
    bench.scheduler.compute_again(bench.scheduler.decide(0.0))
    bench.run()
    bench.submit(PROMPT)
    bench.run()
    assert len(bench.stored) == 4


def common_in_blocks(tenant, own, other_tenant, keys):
    """Return how much two prompts have in common; a tenant finds its blocks also where more of them is shared now."""
    if tenant == other_tenant:
        own, keys = ([token for _, token in side] for side in (own, keys))
    return common_length(own, keys, len(own))


@settings(max_examples=examples(100), deadline=None)
@given(
    BENCHES, st.lists(REQUESTS, min_size=1, max_size=4), st.lists(REQUESTS, min_size=1, max_size=4), st.integers(2, 9)
)
def test_a_replica_learns_from_stored_blocks_only_what_the_same_tenant_or_the_operator_wrote(
    options, before, after, block
):
    options = {**options, "block": block}
    first, written = play(options, before * 2)
    second, numbers = play(options, after, dict(first.stored))
    theirs = [
        ((before * 2)[index]["tenant"], keys)
        for number, index in written.items()
        for keys in said_by(first, number, (before * 2)[index])
    ]
    for prompted in second.of(Prompted):
        request = after[numbers[prompted.number]]
        own = keys_of(request, request["prompt"])
        others = [
            keys
            for number, index in numbers.items()
            if number != prompted.number
            for keys in said_by(second, number, after[index])
        ]
        known = [common_length(own, keys, len(own)) for keys in others]
        known += [common_in_blocks(request["tenant"], own, tenant, keys) for tenant, keys in theirs]
        assert prompted.cached_prompt_tokens <= max(known)
