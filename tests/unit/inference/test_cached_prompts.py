"""Which of the callers' keys the cache has."""

from hypothesis import given
from hypothesis import strategies as st

from services.inference.core.generation import PromptPrefixes
from services.inference.core.scheduling.batching import CachedPrompts
from services.inference.core.scheduling.branches import Finished
from services.inference.core.scheduling.cache_owners import cache_keys
from services.inference.core.scheduling.prefix_tree import PrefixTree
from tests.unit.inference.batching_model import Bench

BLOCK = 4


def keys_of(tokens):
    """Return a key for each block of 4 tokens, which are as many bytes."""
    return tuple(hash(tuple(tokens[:end])) % 2**64 for end in range(BLOCK, len(tokens) + 1, BLOCK))


def prefixes_of(tokens):
    return PromptPrefixes(keys_of(tokens), BLOCK, len(tokens))


def cached_by(tree, prompts, owner=0):
    lengths = [tree.kept_length(cache_keys(tokens, owner), len(tokens)) for tokens in prompts]
    return {key for tokens, length in zip(prompts, lengths, strict=True) for key in keys_of(tokens)[: length // BLOCK]}


def test_a_finished_prompt_is_reported_until_others_need_its_cells():
    bench = Bench(capacity=60, idle=60)
    first, second = list(range(1, 31)), list(range(31, 61))
    bench.submit(first, max_tokens=2, prefixes=prefixes_of(first))
    bench.run()
    assert bench.scheduler.cached_keys(8) == set(keys_of(first))
    bench.submit(second, max_tokens=20, prefixes=prefixes_of(second))
    bench.run()
    assert bench.scheduler.cached_keys(8) == cached_by(bench.scheduler.tree, [first, second], owner=1)
    assert keys_of(first)[-1] not in bench.scheduler.cached_keys(8)


def test_a_prompt_that_waits_is_not_reported():
    bench = Bench(max_running=1)
    first, second = list(range(1, 31)), list(range(31, 61))
    bench.submit(first, prefixes=prefixes_of(first))
    bench.submit(second, prefixes=prefixes_of(second))
    bench.step()
    assert not bench.scheduler.cached_keys(8) & set(keys_of(second))


def test_a_prompt_without_keys_is_not_remembered():
    bench = Bench()
    bench.submit(list(range(1, 31)))
    bench.run()
    assert not bench.scheduler.cached_keys(8)


def test_the_tokens_to_compute_are_counted_without_the_cached_ones():
    bench = Bench(max_running=1)
    prompt = list(range(1, 31))
    bench.submit(prompt, max_tokens=1)
    assert bench.scheduler.pending_prompt_tokens == len(prompt)
    bench.run()
    assert bench.scheduler.pending_prompt_tokens == 0
    bench.submit([*prompt, 40, 41], max_tokens=1)
    assert bench.scheduler.pending_prompt_tokens == 2
    bench.step()
    assert bench.of(Finished) or bench.scheduler.pending_prompt_tokens <= 2


PROMPTS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=24), min_size=1, max_size=12)


@given(PROMPTS, st.integers(1, 6))
def test_after_a_review_exactly_the_cached_beginnings_of_remembered_prompts_are_reported(prompts, capacity):
    tree = PrefixTree(capacity_tokens=60, max_sequences=8, max_idle_tokens=40)
    cached = CachedPrompts(capacity)
    remembered = {}
    for tokens in prompts:
        sequence_id = tree.share(tokens, len(tokens))
        missing = tokens[tree.length(sequence_id) :]
        tree.make_room(tokens=len(missing))
        tree.append(sequence_id, missing)
        cached.add(prefixes_of(tokens), tokens)
        tree.release(sequence_id)
        if len(tokens) >= BLOCK:
            remembered.pop(keys_of(tokens)[-1], None)
            remembered[keys_of(tokens)[-1]] = tokens
        remembered = dict(list(remembered.items())[-capacity:])
    cached.review(tree, len(prompts))
    assert cached.keys == cached_by(tree, remembered.values())
    cached.clear()
    assert not cached.keys
