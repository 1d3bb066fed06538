"""What one tenant computed is found by nobody else, but for prompts that the operator declared shared."""

import hypothesis.strategies as st
from hypothesis import given, settings

from services.inference.core.prompts import SharedPrompts
from services.inference.core.scheduling.branches import Prompted
from services.inference.core.scheduling.cache_owners import SHARED_OWNER, CacheOwners
from services.inference.core.scheduling.parked_prefixes import common_length
from tests.support.examples import examples
from tests.unit.inference.batching_model import Bench
from tests.unit.inference.test_batching import BENCHES, REQUESTS, play

SYSTEM = list(range(100, 140))


def cached(bench, number):
    (prompted,) = bench.of(Prompted, number)
    return prompted.cached_prompt_tokens


def keys_of(request, tokens):
    """Return tokens with the tenant that may know of each; None for everybody."""
    shared = min(request["shared_tokens"], len(request["prompt"]))
    tenants = [None] * shared + [request["tenant"]] * (len(tokens) - shared)
    return list(zip(tenants, tokens, strict=True))


def said_by(bench, number, request):
    """Return all that a request may have put into the cache: its prompt, and each answer after it."""
    for candidate in range(len(request["seeds"])):
        yield keys_of(request, [*request["prompt"], *bench.text(number, candidate).encode()])


@settings(max_examples=examples(150), deadline=None)
@given(BENCHES, st.lists(REQUESTS, min_size=2, max_size=7))
def test_a_count_of_cached_tokens_tells_only_what_the_same_tenant_or_the_operator_wrote(options, requests):
    bench, numbers = play(options, requests)
    for prompted in bench.of(Prompted):
        request = requests[numbers[prompted.number]]
        own = keys_of(request, request["prompt"])
        known = [
            common_length(own, said, len(own))
            for number, index in numbers.items()
            if number != prompted.number
            for said in said_by(bench, number, requests[index])
        ]
        assert prompted.cached_prompt_tokens <= max(known, default=0)


def test_the_same_prompt_of_another_tenant_is_computed_again_and_of_the_same_one_is_not():
    for memo in (0, 8):
        bench = Bench(parked=200, memo=memo)
        counts = []
        for tenant in ("a", "b", "a", "default", "default"):
            number = bench.submit(SYSTEM, tenant=tenant, max_tokens=2)
            bench.run()
            counts.append(cached(bench, number))
        again = len(SYSTEM) - (not memo)
        assert counts == [0, 0, again, 0, again]


def test_a_waiting_prompt_does_not_wait_for_the_same_prompt_of_another_tenant():
    bench = Bench(step_tokens=64)
    for tenant in ("a", "b"):
        bench.submit(SYSTEM[:20], tenant=tenant, max_tokens=1)
    bench.step()
    assert len(bench.of(Prompted)) == 2


def test_a_declared_prompt_is_computed_once_for_all_tenants():
    bench = Bench(capacity=4000, step_tokens=64, max_running=64, sequences=64)
    numbers = [
        bench.submit([*SYSTEM, index, 1, 2], tenant=f"t{index}", shared_tokens=40, max_tokens=1) for index in range(32)
    ]
    bench.run()
    computed = sum(len(part.tokens) for _operations, slices in bench.trace for part in slices)
    assert computed == len(SYSTEM) + 32 * 3
    assert sorted(cached(bench, number) for number in numbers) == [0, *[40] * 31]


def test_a_guess_of_part_of_a_declared_prompt_shares_nothing():
    shared = SharedPrompts([SYSTEM, SYSTEM[:10], [7]])
    assert shared.shared_length([*SYSTEM, 5]) == 40
    assert shared.shared_length(SYSTEM[:39]) == 10
    assert shared.shared_length(SYSTEM[:9]) == 0
    assert shared.shared_length([]) == 0
    assert SharedPrompts().shared_length(SYSTEM) == 0


def test_tenants_have_numbers_of_their_own_and_forgotten_ones_get_new_ones():
    owners = CacheOwners(capacity=2)
    first, second = owners.number_of("a"), owners.number_of("b")
    assert len({SHARED_OWNER, first, second}) == 3
    assert (owners.number_of("b"), owners.number_of("a")) == (second, first)
    third = owners.number_of("c")  # b is forgotten
    assert third not in (first, second)
    assert owners.number_of("a") == first
    assert owners.number_of("b") not in (first, second, third)
