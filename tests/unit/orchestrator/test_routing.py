"""The choice among replicas; tests cite the invariants of `core/routing/replicas.py`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from services.orchestrator.core.routing.prefixes import BLOCK_BYTES, MAX_BLOCKS, PromptPrefixes, prefixes_of
from services.orchestrator.core.routing.replicas import MAX_KEYS, NEWS_AGE_S, Load, Replicas

A, B, C = ADDRESSES = ("ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1", "ipv4:10.0.0.3:1")
OWNER, SECRET = b"tenant", b"secret"


def prompt(text):
    return prefixes_of(OWNER, SECRET, [text])


LONG = prompt(b"long" * 1000)
OTHER = prompt(b"else" * 1000)


def replicas_with(*, now_s=0.0, **loads):
    replicas = Replicas()
    replicas.resolve(ADDRESSES)
    for address, name in zip(ADDRESSES, "abc", strict=True):
        replicas.note_load(address, loads.get(name, Load(seats=8)), now_s)
    return replicas


@given(st.lists(st.binary(max_size=700), max_size=6), st.binary(min_size=1, max_size=700))
def test_what_is_added_to_a_prompt_leaves_the_keys_before_it(parts, added):
    keys = prefixes_of(OWNER, SECRET, parts).keys
    assert prefixes_of(OWNER, SECRET, [*parts, added]).keys[: len(keys)] == keys
    assert len(keys) == sum(map(len, parts)) // BLOCK_BYTES


@given(st.binary(min_size=BLOCK_BYTES, max_size=2000), st.integers(0))
def test_a_changed_byte_changes_the_keys_from_its_block_on(text, place):
    place %= len(text)
    changed = bytearray(text)
    changed[place] ^= 1
    before, after = prompt(text).keys, prompt(bytes(changed)).keys
    block = place // BLOCK_BYTES
    assert before[:block] == after[:block]
    assert not set(before[block:]) & set(after[block:])


def test_owners_and_secrets_have_no_keys_in_common():
    text = [b"x" * 2000]
    sets = [set(prefixes_of(owner, secret, text).keys) for owner in (b"", b"a", b"b") for secret in (b"", b"1", b"2")]
    assert sum(map(len, sets)) == len(set().union(*sets))


def test_a_very_long_prompt_has_a_bounded_number_of_keys():
    assert len(prompt(b"x" * (MAX_BLOCKS + 9) * BLOCK_BYTES).keys) == MAX_BLOCKS


def test_a_cached_beginning_draws_its_prompts():
    replicas = replicas_with()
    replicas.note_keys(B, LONG.keys, (), is_first=True)
    assert replicas.choose(LONG, 0.1).replica == B


def test_a_cached_beginning_is_worth_no_more_than_its_time():
    replicas = replicas_with(b=Load(pending_tokens=5000, seats=8))
    replicas.note_keys(B, LONG.keys, (), is_first=True)
    assert replicas.choose(LONG, 0.0).replica != B


def test_keys_that_were_removed_draw_nothing():
    replicas = replicas_with(b=Load(pending_tokens=500, seats=8))
    replicas.note_keys(B, LONG.keys, (), is_first=True)
    replicas.note_keys(B, (), LONG.keys, is_first=False)
    assert replicas.choose(LONG, 0.0).replica != B


def test_a_prompt_goes_where_its_beginning_was_just_sent():
    replicas = replicas_with()
    first = replicas.choose(LONG, 0.0)
    replicas.start(first, 1000, 0, 0.5)
    replicas.end(first, 0.6)
    for address in ADDRESSES:
        replicas.note_load(address, Load(seats=8), 0.7)
    assert replicas.choose(LONG, 0.8).replica == first.replica


def test_a_full_replica_is_left_alone():
    replicas = replicas_with(
        a=Load(running=8, waiting=3, seats=8), b=Load(running=7, seats=8), c=Load(running=8, seats=8)
    )
    assert replicas.choose(OTHER, 0.1).replica == B


def test_a_slow_replica_gets_less():
    replicas = replicas_with()
    counts = dict.fromkeys(ADDRESSES, 0)
    for number in range(200):
        now_s = float(number)
        for address in ADDRESSES:
            replicas.note_load(address, Load(seats=8), now_s)
        call = replicas.choose(PromptPrefixes((number,), 4000), now_s)
        counts[call.replica] += 1
        replicas.start(call, 1000, 0, now_s + (9.0 if call.replica == A else 0.5))
        replicas.end(call, now_s + 10.0)
    assert counts[A] < 20


def test_a_replica_that_has_not_answered_yet_is_expected_to_be_as_fast_as_the_fastest():
    replicas = replicas_with()
    replicas.start(replicas.choose(LONG, 0.0), 1000, 0, 0.1)
    chosen = {replicas.choose(PromptPrefixes((number,), 400), 0.1).replica for number in range(4)}
    assert chosen == set(ADDRESSES)


@given(st.binary(min_size=BLOCK_BYTES, max_size=3000))
def test_orchestrators_that_know_nothing_choose_alike(text):
    first, second = replicas_with(), replicas_with()
    assert first.choose(prompt(text), 0.0).replica == second.choose(prompt(text), 0.0).replica


def test_one_replica_does_not_get_all_prompts():
    chosen = {replicas_with().choose(prompt(b"%d" % number * 300), 0.0).replica for number in range(50)}
    assert chosen == set(ADDRESSES)


def test_without_news_the_least_work_decides():
    replicas = replicas_with(now_s=-10.0, b=Load(pending_tokens=9000, seats=8))
    chosen = [replicas.choose(PromptPrefixes((number,), 400), 0.0).replica for number in range(6)]
    assert sorted(chosen) == sorted([*ADDRESSES, *ADDRESSES])


def test_a_replica_that_sends_no_news_at_all_is_not_taken_for_silent():
    replicas = replicas_with()
    replicas.resolve((*ADDRESSES, "ipv4:10.0.0.4:1"))
    replicas.note_mute("ipv4:10.0.0.4:1")
    assert replicas.choose(LONG, 0.0, avoided=ADDRESSES).replica == "ipv4:10.0.0.4:1"


KEYS = st.lists(st.integers(0, 2**64 - 1), max_size=4)
NUMBERS = st.integers(0, 2**31 - 1)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, the invariants hold."""

    def __init__(self):
        super().__init__()
        self.replicas, self.now_s = Replicas(), 0.0
        self.known, self.mute, self.news, self.calls = set(), set(), {}, []

    @rule(known=st.sets(st.sampled_from(ADDRESSES)))
    def resolve(self, known):
        self.replicas.resolve(sorted(known))
        self.known, self.mute = known, self.mute & known
        self.news = {address: at_s for address, at_s in self.news.items() if address in known}

    @rule(avoided=st.sets(st.sampled_from(ADDRESSES)), keys=KEYS, size=NUMBERS)
    def choose(self, avoided, keys, size):
        prefixes = PromptPrefixes(tuple(keys), max(size, len(keys) * BLOCK_BYTES))
        call = self.replicas.choose(prefixes, self.now_s, avoided)
        left = self.known - avoided
        if not left:
            assert call is None
            return
        talking = {one for one in left if one in self.mute or self.now_s - self.news.get(one, -math.inf) <= NEWS_AGE_S}
        assert call.replica in (talking or left)  # 1, 2
        self.calls.append(call)

    @precondition(lambda self: self.calls)
    @rule(index=NUMBERS, prompt_tokens=NUMBERS, cached_tokens=NUMBERS)
    def start(self, index, prompt_tokens, cached_tokens):
        self.replicas.start(self.calls[index % len(self.calls)], prompt_tokens, cached_tokens, self.now_s)

    @precondition(lambda self: self.calls)
    @rule(index=NUMBERS)
    def end(self, index):
        call = self.calls.pop(index % len(self.calls))
        self.replicas.end(call, self.now_s)
        self.replicas.end(call, self.now_s)  # ending it twice does no harm

    @rule(address=st.sampled_from(ADDRESSES), load=st.builds(Load, NUMBERS, NUMBERS, NUMBERS, NUMBERS))
    def note_load(self, address, load):
        self.replicas.note_load(address, load, self.now_s)
        if address in self.known:
            self.news[address] = self.now_s

    @rule(address=st.sampled_from(ADDRESSES), added=KEYS, removed=KEYS, is_first=st.booleans())
    def note_keys(self, address, added, removed, is_first):
        self.replicas.note_keys(address, added, removed, is_first=is_first)

    @rule(address=st.sampled_from(ADDRESSES))
    def note_mute(self, address):
        self.replicas.note_mute(address)
        self.mute |= self.known & {address}

    @rule(seconds=st.floats(0, 1e6))
    def wait(self, seconds):
        self.now_s += seconds

    def teardown(self):
        for call in self.calls:
            self.replicas.end(call, self.now_s)
        for address in self.known:
            work = self.replicas.work_of(address, self.now_s + 2 * NEWS_AGE_S + 1)
            assert (work.pending_tokens, work.running, work.waiting) == (0, 0, 0)  # 3


TestAnyOrder = AnyOrder.TestCase


def test_a_replica_cannot_fill_the_memory_with_keys():
    replicas = replicas_with()
    replicas.note_keys(A, range(2 * MAX_KEYS), (), is_first=True)
    replicas.note_keys(A, range(2 * MAX_KEYS, 3 * MAX_KEYS), (), is_first=False)
    assert replicas.keys_of(A) <= MAX_KEYS  # 4


@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_that_ended_without_an_answer_count_nothing(count):
    replicas = replicas_with(now_s=-10.0)
    for call in [replicas.choose(LONG, 0.0) for _ in range(count)]:
        replicas.end(call, 1.0)
    assert [replicas.work_of(address, 2.0) for address in ADDRESSES] == [Load(seats=8)] * 3
