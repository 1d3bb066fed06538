"""The scheduler's numbered invariants, and what its users see of them."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded
from pagantic_common.testing.scripted_engine import ScriptedEngine, random_logits
from services.inference.core.generation import FinishReason, Sampling
from services.inference.core.scheduling.branches import Ended, Failed, FailureCause, Finished, Prompted
from tests.support.examples import examples
from tests.unit.inference.batching_model import WARM, Bench, alone

GREEDY = Sampling(temperature=0)
TENANTS = ("default", "a", "b", "c", "d")
PROMPTS = st.lists(st.integers(97, 99), min_size=1, max_size=40)
REQUESTS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "seeds": st.lists(st.integers(0, 5), min_size=1, max_size=4),
        "max_tokens": st.integers(1, 20),
        "priority": st.integers(-2, 2),
        "may_draft": st.booleans(),
        "tenant": st.sampled_from(TENANTS),
        "shared_tokens": st.integers(0, 6),
        "kept_tokens": st.none() | st.integers(0, 8),
        "at": st.integers(0, 10),
        "cancel_after": st.none() | st.integers(0, 8),
        "expires_after": st.none() | st.integers(0, 8),
        "cancel_candidate": st.none() | st.tuples(st.integers(0, 3), st.integers(0, 8)),
    }
)
BENCHES = st.fixed_dictionaries(
    {
        "step_tokens": st.integers(2, 40),
        "prompt_steps": st.sampled_from([1, 4]),
        "mixes_steps": st.booleans(),
        "costs": st.sampled_from([None, lambda rows: rows * 1e-4, lambda rows: 0.01 + rows * 1e-2]),
        "max_running": st.integers(1, 6),
        "capacity": st.integers(70, 200),
        "sequences": st.integers(2, 10),
        "idle": st.integers(0, 60),
        "parked": st.integers(0, 150),
        "memo": st.integers(0, 12),
        "block": st.none() | st.integers(2, 20),
        "weights": st.dictionaries(st.sampled_from(TENANTS), st.sampled_from([0.01, 0.5, 2.0, 1000.0])),
    }
)


def play(options, requests, stored=None):
    """Run requests that arrive, are cancelled and expire at given steps; return the bench and number -> request.

    `stored` has the blocks that another replica has stored.
    """
    bench = Bench(**options, stored=stored)
    numbers = {}
    for now in range(3000):
        bench.now = float(now)
        for index, request in enumerate(requests):
            if request["at"] == now:
                expires = request["expires_after"]
                number = bench.submit(
                    request["prompt"],
                    seeds=request["seeds"],
                    max_tokens=request["max_tokens"],
                    priority=request["priority"],
                    may_draft=request["may_draft"],
                    tenant=request["tenant"],
                    shared_tokens=min(request["shared_tokens"], len(request["prompt"])),
                    kept_tokens=request["kept_tokens"],
                    deadline=Deadline() if expires is None else Deadline(now + expires),
                )
                numbers[number] = index
        for number, index in numbers.items():
            request = requests[index]
            if request["cancel_after"] is not None and now == request["at"] + request["cancel_after"]:
                bench.scheduler.cancel(number)
            if request["cancel_candidate"] is not None and now == request["at"] + request["cancel_candidate"][1]:
                bench.scheduler.cancel_candidate(number, request["cancel_candidate"][0])
        bench.step()
        if now > 10 and not bench.scheduler.has_work:
            return bench, numbers
    raise AssertionError("the scheduler does not come to an end")


@settings(max_examples=examples(150), deadline=None)
@given(BENCHES, st.lists(REQUESTS, min_size=1, max_size=7))
def test_no_request_is_lost_and_none_ends_twice(options, requests):
    bench, numbers = play(options, requests)
    outcomes = [(e.number, type(e)) for e in bench.events if isinstance(e, Finished | Failed)]
    assert sorted(number for number, _ in outcomes) == sorted(numbers)
    for number, outcome in outcomes:
        request = requests[numbers[number]]
        ended = sorted(e.candidate for e in bench.of(Ended, number))
        assert len(ended) == len(set(ended))
        if outcome is Finished:
            assert ended == list(range(len(request["seeds"])))
        else:
            assert request["cancel_after"] is not None or request["expires_after"] is not None


@settings(max_examples=examples(100), deadline=None)
@given(BENCHES, st.lists(REQUESTS, min_size=1, max_size=7))
def test_the_token_budget_and_the_cache_are_never_exceeded(options, requests):
    bench, _ = play(options, requests)  # the scripted engine itself refuses a cell too many and a wrong position
    for _, slices in bench.trace:
        most = options["step_tokens"]
        if all(part.logit_rows <= 1 for part in slices):
            most *= options["prompt_steps"]
        assert sum(len(part.tokens) for part in slices) <= most
        assert len({part.sequence_id for part in slices}) == len(slices)


@settings(max_examples=examples(100), deadline=None)
@given(BENCHES, st.lists(REQUESTS, min_size=1, max_size=6))
def test_each_candidate_says_what_it_would_say_alone(options, requests):
    check_texts(requests, *play(options, requests))


@settings(max_examples=examples(100), deadline=None)
@given(BENCHES, st.lists(REQUESTS, min_size=1, max_size=6), st.integers(2, 20))
def test_a_replica_that_starts_with_the_blocks_of_another_one_says_the_same(options, requests, block):
    options = {**options, "block": block}
    first, _ = play(options, requests)
    check_texts(requests, *play(options, requests, dict(first.stored)))


def check_texts(requests, bench, numbers):
    for number, index in numbers.items():
        request = requests[index]
        for ended in bench.of(Ended, number):
            seed = request["seeds"][ended.candidate]
            expected = alone(request["prompt"], seed, max_tokens=request["max_tokens"])
            said = bench.text(number, ended.candidate)
            if ended.finish_reason is FinishReason.CANCELLED:
                assert expected.startswith(said.rstrip("�"))
            else:
                assert said == expected


@settings(max_examples=examples(50), deadline=None)
@given(BENCHES, st.lists(REQUESTS, min_size=1, max_size=6))
def test_the_same_requests_give_the_same_trace(options, requests):
    first, _ = play(options, requests)
    second, _ = play(options, requests)
    assert first.trace == second.trace
    assert first.events == second.events


@settings(max_examples=examples(50), deadline=None)
@given(BENCHES, st.lists(PROMPTS, min_size=1, max_size=5), st.integers(0, 12))
def test_cancelling_one_request_never_stalls_its_neighbours(options, prompts, at):
    def steps(is_cancelled):
        bench = Bench(**options)
        numbers = [bench.submit(prompt, seeds=(i,), max_tokens=10) for i, prompt in enumerate([[120] * 30, *prompts])]
        for now in range(3000):
            if is_cancelled and now == at:
                bench.scheduler.cancel(numbers[0])
            bench.step()
            if all(number in bench.outcomes() for number in numbers[1:]):
                return now, [bench.text(number) for number in numbers[1:]]
        raise AssertionError("the neighbours never end")

    with_cancel, texts = steps(is_cancelled=True)
    without, expected = steps(is_cancelled=False)
    assert texts == expected
    assert with_cancel <= without + 1


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 4), st.integers(4, 20))
def test_a_low_priority_request_is_served_however_many_others_arrive(max_running, step_tokens):
    bench = Bench(max_running=max_running, step_tokens=step_tokens)
    low = bench.submit([97] * 30, priority=-10, max_tokens=4)
    for now in range(400):
        if bench.scheduler.waiting < 6:
            bench.submit([98 + now % 9, now % 97, now % 89], priority=10, max_tokens=4)
        bench.step()
        if low in bench.outcomes():
            return
    raise AssertionError("the request starved")


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(3, 16))
def test_a_long_prompt_is_not_starved_by_short_ones_nor_by_decoding(step_tokens):
    bench = Bench(step_tokens=step_tokens, max_running=8, capacity=4000)
    for seed in range(5):
        bench.submit([100 + seed] * 3, seeds=(seed,), max_tokens=500)
    long = bench.submit([97] * 120, max_tokens=2)
    for now in range(400):
        if now % 2 == 0 and bench.scheduler.waiting < 4:
            bench.submit([98, now % 97, now % 89] * 6, max_tokens=2)
        bench.step()
        if bench.of(Prompted, long):
            return
    raise AssertionError("the long prompt starved")


def test_a_higher_priority_runs_first_when_requests_wait():
    bench = Bench(max_running=1)
    running = bench.submit([97, 98])
    bench.step()
    low, high = bench.submit([99], priority=0), bench.submit([100], priority=5)
    bench.run()
    assert list(bench.outcomes()) == [running, high, low]


def test_one_request_too_many_is_refused_and_told_when_to_come_back():
    bench = Bench(max_running=1, queue_capacity=2)
    for _ in range(3):
        bench.submit([97, 98])
    with pytest.raises(Overloaded) as refused:
        bench.submit([97])
    assert refused.value.code is ErrorCode.INFERENCE_OVERLOADED
    assert refused.value.retry_after_s


def test_a_shared_prefix_is_computed_once_even_when_all_arrive_together():
    bench = Bench(step_tokens=16, max_running=8, capacity=400)
    prefix = list(range(97, 117)) * 3
    numbers = [bench.submit([*prefix, number, number + 1], max_tokens=2, seeds=(number,)) for number in range(8)]
    bench.run()
    cached = [bench.of(Prompted, number)[0].cached_prompt_tokens for number in numbers]
    assert sum(cached) == 7 * len(prefix)
    assert bench.scheduler.rows_total == len(prefix) + 8 * (2 + 1)


def test_endings_of_a_known_prompt_fill_a_batch_and_leave_the_prompt_alone_behind():
    bench = Bench(step_tokens=32, max_running=8, capacity=400)
    prompt = list(range(97, 117))
    for number in range(8):
        bench.submit([*prompt, 1, 2, number, 3], max_tokens=1, kept_tokens=len(prompt))
    bench.step()
    assert len(bench.step().slices) == 7  # they share two more tokens, and none of them waits for these
    bench.run()
    assert bench.scheduler.tree.used_tokens == len(prompt)


@pytest.mark.parametrize("kept_tokens", [0, 1, None])
def test_a_prompt_whose_row_is_kept_is_asked_again_by_a_request_that_keeps_few_tokens(kept_tokens):
    bench = Bench(memo=1)
    for kept in (None, kept_tokens):
        bench.submit([97], max_tokens=1, kept_tokens=kept)
        bench.run()
    assert set(bench.outcomes().values()) == {Finished}


def test_candidates_that_agree_cost_one_row_and_part_where_they_differ():
    bench = Bench(engine=ScriptedEngine("the same words", kv_capacity_tokens=400), sequences=64)
    number = bench.submit([97, 98, 99], seeds=range(5), max_tokens=20)
    bench.run()
    assert [bench.text(number, index) for index in range(5)] == ["the same words"] * 5
    assert bench.of(Finished, number)[0].rows == 3 + len("the same words")
    assert {e.finish_reason for e in bench.of(Ended, number)} == {FinishReason.STOP}


def test_lazy_forks_draw_from_the_same_distribution_as_independent_samples():
    def logits(tokens):
        row = np.full(257, -np.inf, dtype=np.float32)
        row[97:100] = np.log([0.6, 0.3, 0.1]) if tokens[-1] != 97 else np.log([0.2, 0.3, 0.5])
        return row

    forked: Counter[str] = Counter()
    independent: Counter[str] = Counter()
    for base in range(0, 2000, 10):
        bench = Bench(engine=ScriptedEngine(logits_of=logits, kv_capacity_tokens=400), sequences=64)
        number = bench.submit([120, 121], seeds=range(base, base + 10), max_tokens=2)
        bench.run()
        forked.update(bench.text(number, index) for index in range(10))
    bench = Bench(engine=ScriptedEngine(logits_of=logits, kv_capacity_tokens=400), sequences=64)
    for seed in range(2000):
        number = bench.submit([120, 121], seeds=(seed,), max_tokens=2)
        bench.run()
        independent[bench.text(number)] += 1
    assert forked == independent  # the same seeds draw the same numbers, whoever shares a row with them
    expected = {"aa": 0.12, "ab": 0.18, "ac": 0.30, "ba": 0.18, "bb": 0.09, "bc": 0.03, "ca": 0.06, "cb": 0.03}
    for text, probability in expected.items():
        assert forked[text] / 2000 == pytest.approx(probability, abs=0.035)


def test_one_candidate_is_cancelled_alone():
    bench = Bench()
    number = bench.submit([97, 98], seeds=(1, 2, 3), max_tokens=10)
    for _ in range(4):
        bench.step()
    bench.scheduler.cancel_candidate(number, 1)
    bench.run()
    reasons = {e.candidate: (e.finish_reason, e.output_tokens) for e in bench.of(Ended, number)}
    assert reasons[1][0] is FinishReason.CANCELLED
    assert reasons[1][1] < 10
    assert [bench.text(number, index) for index in (0, 2)] == [
        alone([97, 98], 1, max_tokens=10),
        alone([97, 98], 3, max_tokens=10),
    ]


def test_tokens_count_when_they_are_decoded_and_come_to_the_sum_of_all_candidates():
    bench, totals = Bench(), []
    bench.submit([97, 98], seeds=(0, 1, 2), max_tokens=6)
    while bench.scheduler.has_work:
        bench.step()
        totals.append(bench.scheduler.output_tokens_total)
    assert totals == sorted(totals)
    assert 0 < totals[len(totals) // 2] < totals[-1]
    assert totals[-1] == sum(event.output_tokens for event in bench.events if isinstance(event, Ended))


def test_nothing_is_decoded_for_a_request_after_its_cancel():
    bench = Bench()
    number = bench.submit([97, 98], max_tokens=50)
    for _ in range(5):
        bench.step()
    rows = bench.scheduler.rows_total
    bench.scheduler.cancel(number)
    bench.run()
    assert bench.scheduler.rows_total == rows
    assert bench.of(Failed, number)[0].cause is FailureCause.CANCELLED


def test_a_full_cache_preempts_the_last_and_loses_nothing():
    bench = Bench(capacity=70, sequences=8, idle=0, step_tokens=32)
    numbers = [bench.submit([97 + i] * 10, seeds=(i,), max_tokens=30) for i in range(4)]
    bench.run()
    assert bench.scheduler.preemptions_total > 0
    assert [bench.text(n) for n in numbers] == [alone([97 + i] * 10, i, max_tokens=30) for i in range(4)]


def test_a_refused_batch_is_made_smaller_and_loses_nothing():
    bench = Bench()
    numbers = [bench.submit([97 + i] * 10, seeds=(i,), max_tokens=10) for i in range(3)]
    for _ in range(4):
        bench.step()
    bench.scheduler.decide(0.0)
    bench.events += bench.scheduler.refuse()
    bench.run()
    assert [bench.text(n) for n in numbers] == [alone([97 + i] * 10, i, max_tokens=10) for i in range(3)]


def test_a_failed_batch_ends_its_requests_and_no_others():
    bench = Bench(max_running=2)
    numbers = [bench.submit([97 + i], max_tokens=10) for i in range(3)]
    bench.step()
    plan = bench.scheduler.decide(0.0)
    bench.events += bench.scheduler.fail(plan, "it broke")
    bench.run()
    assert [bench.outcomes()[number] for number in numbers] == [Failed, Failed, Finished]
    assert bench.of(Failed, numbers[0])[0].reason == "it broke"


class BreaksAfter:
    """A constraint that allows everything and breaks at its n-th token."""

    def __init__(self, tokens):
        self.left = tokens

    def mask(self, logits):
        return logits

    def accept(self, _token):
        self.left -= 1
        if self.left == 0:
            raise InvalidRequest("the constraint broke")

    def forced_tokens(self):
        return []

    def is_complete(self):
        return False

    is_stopped = is_complete

    def fork(self):
        return BreaksAfter(self.left)


@pytest.mark.parametrize("memo", [0, 32])
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_a_constraint_that_breaks_ends_its_own_request_with_all_its_branches(tokens, memo):
    bench = Bench(memo=memo, idle=100)
    other = bench.submit([97, 98], seeds=(3,), max_tokens=10)
    for _ in range(2):
        broken = bench.submit([97, 99], seeds=range(5), max_tokens=10, matcher=BreaksAfter(tokens))
        bench.run()
        assert [event.reason for event in bench.of(Failed, broken)] == ["the constraint broke"]
    assert bench.text(other) == alone([97, 98], 3, max_tokens=10)


def test_drafts_change_the_steps_and_not_the_words():
    text = "one two three four five six seven eight nine ten. "

    def quoting(tokens):
        row = np.zeros(257, dtype=np.float32)
        row[text.encode()[len(tokens) % len(text)]] = 50.0
        return row

    prompt = list((text * 2).encode())
    said, steps = {}, {}
    for may_draft in (False, True):
        engine = ScriptedEngine(logits_of=quoting, kv_capacity_tokens=1000, context_window=1000)
        bench = Bench(engine=engine, capacity=1000, step_tokens=32, costs=lambda rows: 1 + rows / 8)
        number = bench.submit(prompt, max_tokens=60, may_draft=may_draft)
        bench.run()
        said[may_draft], steps[may_draft] = bench.text(number), bench.steps
    assert said[True] == said[False] == (text * 2)[:60]
    assert steps[True] < steps[False] / 3


def test_drafts_stop_where_they_do_not_pay():
    prompt = [97, 98, 99, 100] * 20

    def never_as_drafted(tokens):
        row = np.zeros(257, dtype=np.float32)
        row[97 + (sum(tokens[-3:]) * 7 + len(tokens)) % 4] = 50.0
        return row

    engine = ScriptedEngine(logits_of=never_as_drafted, kv_capacity_tokens=1000, context_window=1000)
    bench = Bench(engine=engine, capacity=1000, step_tokens=32, costs=float)
    number = bench.submit(prompt, max_tokens=200, may_draft=True)
    bench.run()
    assert bench.of(Finished, number)[0].rows < len(prompt) + 200 + 60


def test_a_prompt_that_left_the_cache_comes_back_from_host_memory():
    bench = Bench(capacity=400, idle=0, parked=200)
    prompt = list(range(60))
    first = bench.submit(prompt)
    bench.run()
    assert bench.scheduler.tree.used_tokens == 0
    second = bench.submit(prompt)
    bench.run()
    assert bench.of(Prompted, second)[0].cached_prompt_tokens == len(prompt) - 1
    assert bench.text(first) == bench.text(second)


def test_a_vote_that_is_asked_again_computes_only_where_no_candidate_has_been():
    def few_words(_tokens):
        row = np.full(257, -np.inf, dtype=np.float32)
        row[97:99] = 0.0
        return row

    engine = ScriptedEngine(logits_of=few_words, kv_capacity_tokens=400)
    bench = Bench(engine=engine, sequences=64, idle=200, memo=32)
    rows = []
    for start in range(0, 60, 10):
        before = bench.scheduler.rows_total
        number = bench.submit([120] * 30, seeds=range(start, start + 10), max_tokens=3)
        bench.run()
        rows.append(bench.scheduler.rows_total - before)
        expected = Bench(engine=ScriptedEngine(logits_of=few_words, kv_capacity_tokens=400), sequences=64)
        same = expected.submit([120] * 30, seeds=range(start, start + 10), max_tokens=3)
        expected.run()
        assert [bench.text(number, i) for i in range(10)] == [expected.text(same, i) for i in range(10)]
    assert rows[0] >= 30
    assert rows[-1] == 0
    assert bench.of(Prompted, number)[0].cached_prompt_tokens == 30


def test_a_broken_cache_is_forgotten_and_all_requests_are_served():
    bench = Bench(idle=50, parked=200)
    running = bench.submit([97] * 30, max_tokens=10)
    for _ in range(5):
        plan = bench.step()
    bench.events += bench.scheduler.compute_again(plan)
    again = bench.submit([97] * 30, max_tokens=10)
    bench.run()
    assert bench.outcomes() == {running: Finished, again: Finished}
    assert bench.text(running) == bench.text(again) == alone([97] * 30, max_tokens=10)


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_repeated_prompt_is_taken_from_the_cache(sampling):
    bench = Bench(capacity=400, idle=300)
    prompt = list(range(60))
    first = bench.submit(prompt, sampling=sampling)
    bench.run()
    second = bench.submit(prompt, sampling=sampling)
    bench.run()
    assert bench.of(Prompted, first)[0].cached_prompt_tokens == 0
    assert bench.of(Prompted, second)[0].cached_prompt_tokens == len(prompt) - 1
    assert bench.text(first) == bench.text(second)


def test_random_logits_depend_on_their_tokens_alone():
    assert np.array_equal(random_logits([1, 2]), random_logits([1, 2]))
    assert not np.array_equal(random_logits([1, 2]), random_logits([2, 1]))
