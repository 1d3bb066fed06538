"""Drafts of a draft model: the words stay, the cache of the draft model is kept, and what does not pay ends."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pagantic_common.domain.errors import Internal
from pagantic_common.testing.clock import FakeClock
from pagantic_common.testing.scripted_engine import ScriptedEngine, random_logits
from services.inference.app.draft_engine import CacheLimits, DraftEngine
from services.inference.core.decoding.images import IMAGE_TOKEN
from services.inference.core.scheduling.branches import Failed, Finished
from services.inference.core.scheduling.draft_worth import MeasuredWorth
from tests.support.examples import examples
from tests.support.fixed_drafts import FixedDepth
from tests.unit.inference.batching_model import Bench
from tests.unit.inference.test_batching import BENCHES, REQUESTS, check_texts, play

TEXT = "The draft model says what the model says, most of the time. "


def saying(text):
    """Return logits that make a text certain, by the number of tokens alone."""

    def logits(tokens):
        row = np.zeros(257, dtype=np.float32)
        row[text.encode()[len(tokens) % len(text)]] = 50.0
        return row

    return logits


def never_right(_tokens):
    row = np.zeros(257, dtype=np.float32)
    row[0] = 50.0
    return row


def drafts_of(logits_of, *, policy=None, cost_of=lambda _rows: 0.0, parked=0, idle=0, size=257, **options):
    clock = FakeClock()

    def on_decode(slices):
        clock.advance(cost_of(sum(len(part.tokens) for part in slices)))

    options = {"kv_capacity_tokens": 1000, "context_window": 1000, "max_sequences": 16, **options}
    engine = ScriptedEngine(logits_of=logits_of, on_decode=on_decode, **options)
    drafts = DraftEngine(engine, vocabulary_size=size, limits=CacheLimits(idle, parked), clock=clock, policy=policy)
    drafts.measure()
    return drafts


def bench_of(drafts, *, logits_of=None, **options):
    engine = ScriptedEngine(logits_of=logits_of or saying(TEXT), kv_capacity_tokens=1000, context_window=1000)
    return Bench(engine=engine, drafts=drafts, capacity=1000, **{"step_tokens": 32, **options})


DRAFTS = st.fixed_dictionaries(
    {
        "kv_capacity_tokens": st.integers(20, 200),
        "max_sequences": st.integers(1, 10),
        "parked": st.integers(0, 100),
        "idle": st.integers(0, 60),
        "depth": st.integers(1, 9),
    }
)


@settings(max_examples=examples(150), deadline=None)
@given(BENCHES, DRAFTS, st.lists(REQUESTS, min_size=1, max_size=6), st.booleans())
def test_each_candidate_says_what_it_would_say_alone(options, draft_options, requests, is_right):
    draft_options = dict(draft_options)
    policy = FixedDepth(draft_options.pop("depth"))
    # The scripted engine itself refuses a cell too many, a batch that is too large, and a wrong position.
    drafts = drafts_of(random_logits if is_right else never_right, policy=policy, **draft_options)
    check_texts(requests, *play({**options, "drafts": drafts}, requests))
    assert not drafts.model.is_off


def test_a_right_draft_model_saves_steps():
    plain = bench_of(None)
    number = plain.submit(list(b"quite a short prompt"), max_tokens=60, may_look_up=False)
    plain.run()
    drafts = drafts_of(saying(TEXT), policy=FixedDepth(4))
    drafted = bench_of(drafts)
    assert drafted.submit(list(b"quite a short prompt"), max_tokens=60, may_draft=True, may_look_up=False) == number
    drafted.run()
    assert drafted.text(number) == plain.text(number)
    assert drafted.steps <= plain.steps / 4
    count = drafted.scheduler.guessed
    assert count.accepted == count.drafted >= 40
    assert drafted.scheduler.looked_up.drafted == 0


def test_guesses_of_all_branches_share_one_batch_per_position():
    drafts = drafts_of(saying(TEXT), policy=FixedDepth(3))
    bench = bench_of(drafts)
    for seed in range(3):
        bench.submit([97 + seed] * 10, seeds=(seed,), max_tokens=40, may_draft=True, may_look_up=False)
    for _ in range(4):
        bench.step()
    before = len(drafts.engine.batches)
    bench.step()
    assert [len(batch) for batch in drafts.engine.batches[before:]] == [3, 3, 3]
    bench.run()


def test_a_request_that_may_not_draft_gets_no_drafts():
    drafts = drafts_of(saying(TEXT), policy=FixedDepth(4))
    bench = bench_of(drafts)
    bench.submit([97] * 10, max_tokens=20)
    before = len(drafts.engine.batches)
    bench.run()
    assert len(drafts.engine.batches) == before


def test_a_long_prompt_is_computed_in_bounded_batches_of_which_each_step_has_one():
    drafts = drafts_of(saying(TEXT), policy=FixedDepth(4))
    drafts.engine.max_batch_tokens = 16
    drafts.model.renew(drafts._empty_tree(), 16)
    bench = bench_of(drafts, step_tokens=64)
    bench.submit([97] * 100, max_tokens=40, may_draft=True, may_look_up=False)
    before = len(drafts.engine.batches)
    while bench.scheduler.has_work:
        computed = len(drafts.engine.batches)
        bench.step()
        sizes = [sum(map(len, batch)) for batch in drafts.engine.batches[computed:]]
        assert max(sizes, default=0) <= 16
        assert len(sizes) <= 4
    assert sum(sum(map(len, batch)) for batch in drafts.engine.batches[before:]) < 100 + 40 * 2


@pytest.mark.parametrize(("tenant", "computed_again"), [("a", False), ("b", True)])
def test_a_prompt_is_computed_again_for_another_tenant_alone(tenant, computed_again):
    drafts = drafts_of(saying(TEXT), policy=FixedDepth(4), parked=500)
    bench = bench_of(drafts)
    prompt = list(b"a prompt of more than sixteen tokens, which is worth keeping") * 2
    bench.submit(prompt, max_tokens=30, may_draft=True, may_look_up=False, tenant="a")
    bench.run()
    before = len(drafts.engine.batches)
    bench.submit(prompt, max_tokens=30, may_draft=True, may_look_up=False, tenant=tenant)
    bench.run()
    computed = sum(sum(map(len, batch)) for batch in drafts.engine.batches[before:])
    assert (computed > len(prompt)) is computed_again


def test_tokens_that_the_draft_model_lacks_are_neither_computed_nor_drafted():
    drafts = drafts_of(saying("\x7f"), policy=FixedDepth(4), size=110)
    bench = bench_of(drafts)
    bench.submit([97] * 10, max_tokens=20, may_draft=True, may_look_up=False)
    bench.submit([120] * 10, max_tokens=20, may_draft=True, may_look_up=False)
    bench.submit([97, IMAGE_TOKEN, 97], max_tokens=20, may_draft=True, may_look_up=False)
    bench.run()
    assert all(0 <= token < 110 for batch in drafts.engine.batches for tokens in batch for token in tokens)
    assert all(issubclass(outcome, Finished) for outcome in bench.outcomes().values())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_draft_model_that_fails_is_switched_off_and_no_request_fails(is_first):
    drafts = drafts_of(saying(TEXT), policy=FixedDepth(4))
    bench = bench_of(drafts)
    number = bench.submit([97] * 10, max_tokens=40, may_draft=True, may_look_up=False)
    for _ in range(1 if is_first else 5):
        bench.step()

    def fail(_slices):
        raise MemoryError("no memory")

    drafts.engine._on_decode = fail
    bench.run()
    assert drafts.model.is_off
    assert not bench.of(Failed)
    assert len(bench.text(number)) == 40


def run_measured(draft_logits, *, draft_cost, main_cost, tokens=400, prompts=1):
    """Return the seconds of all steps and drafts, the seconds without drafts, and the bench."""
    drafts = drafts_of(draft_logits, policy=MeasuredWorth(), cost_of=draft_cost)
    begun_s = drafts._clock.monotonic_s()
    bench = bench_of(drafts, costs=main_cost)
    spent = 0.0
    for _ in range(prompts):
        bench.submit(list(b"some prompt"), max_tokens=tokens, may_draft=True, may_look_up=False)
        while bench.scheduler.has_work:
            plan = bench.step()
            spent += main_cost(sum(len(part.tokens) for part in bench.trace[-1][1])) if plan.slices else 0
    return spent + drafts._clock.monotonic_s() - begun_s, prompts * tokens * main_cost(1), bench


def test_drafts_are_made_where_they_pay():
    spent_s, plain_s, bench = run_measured(
        saying(TEXT), draft_cost=lambda rows: 0.001 + rows * 1e-5, main_cost=lambda rows: 0.02 + rows * 1e-4
    )
    assert spent_s < plain_s / 2
    count = bench.scheduler.guessed
    assert count.accepted > 0.9 * count.drafted


@pytest.mark.parametrize(
    ("draft_logits", "draft_cost", "main_cost"),
    [
        (saying(TEXT), lambda rows: 0.02 + rows * 0.01, lambda rows: 0.02 + rows * 0.03),  # as on two cores
        (never_right, lambda rows: 0.001 + rows * 1e-5, lambda rows: 0.02 + rows * 1e-4),
        (never_right, lambda rows: 0.01 + rows * 1e-3, lambda rows: 0.02 + rows * 1e-3),
    ],
)
def test_drafts_that_do_not_pay_cost_little(draft_logits, draft_cost, main_cost):
    spent_s, plain_s, _ = run_measured(draft_logits, draft_cost=draft_cost, main_cost=main_cost, prompts=10)
    assert spent_s < plain_s * 1.02


def test_drafts_that_did_not_pay_are_tried_again_and_found_when_they_pay():
    costs = {"draft": 0.03}
    drafts = drafts_of(saying(TEXT), policy=MeasuredWorth(), cost_of=lambda rows: costs["draft"] + rows * 1e-5)
    bench = bench_of(drafts, costs=lambda rows: 0.02 + rows * 1e-4)

    def ask(count):
        for _ in range(count):
            bench.submit(list(b"some prompt"), max_tokens=400, may_draft=True, may_look_up=False)
            bench.run()
        return bench.scheduler.guessed.drafted

    before = ask(2)
    costs["draft"] = 0.001
    assert ask(18) > before + 1000


def test_a_full_batch_has_no_room_for_drafts():
    drafts = drafts_of(saying(TEXT), policy=FixedDepth(4))
    bench = bench_of(drafts, step_tokens=4, max_running=8)
    for seed in range(8):
        bench.submit([97 + seed] * 3, seeds=(seed,), max_tokens=20, may_draft=True, may_look_up=False)
    bench.run()
    assert bench.scheduler.guessed.drafted < 8 * 20
    assert all(sum(len(part.tokens) for part in slices) <= 4 for _, slices in bench.trace)


def test_a_draft_model_that_cannot_forget_its_last_tokens_is_switched_off_at_the_start():
    def refuse(slices):
        if slices[0].position:
            raise Internal("the state stands for all tokens")

    engine = ScriptedEngine(on_decode=refuse)
    drafts = DraftEngine(engine, vocabulary_size=257, limits=CacheLimits(), clock=FakeClock())
    drafts.measure()
    assert drafts.model.is_off
    bench = bench_of(drafts)
    number = bench.submit([97] * 10, max_tokens=40, may_draft=True)
    bench.run()
    assert len(bench.text(number)) == 40
