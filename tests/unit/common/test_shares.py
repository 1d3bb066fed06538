"""Shares: never more than the capacity, room for newcomers, and an equal share for owners that are busy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.calls.principal import LOCAL, Principal, PrincipalKind, work_of
from pagantic_common.domain.calls.shares import Shares


def fill(shares, *owners):
    """Let owners take turns until none of them gets more, and return what each one holds."""
    while sum(shares.begin(owner) for owner in owners):
        pass
    return [shares.held_by(owner) for owner in owners]


@pytest.mark.parametrize(("owners", "share"), [("a", 30), ("ab", 20), ("abc", 15), ("abcde", 10)])
def test_busy_owners_get_equal_shares_and_another_one_stays_free(owners, share):
    shares = Shares(60)
    assert fill(shares, *owners) == [share] * len(owners)
    assert shares.free == share


def test_a_lower_weight_leaves_more_free():
    shares = Shares(60, weight=0.5)
    assert fill(shares, "a") == [20]
    assert fill(shares, "b") == [13]


def test_an_owner_that_came_first_gives_way_as_its_work_ends():
    shares = Shares(60)
    assert fill(shares, "first") == [30]
    assert fill(shares, "second") == [15]
    for _ in range(60):
        shares.end("first")
        fill(shares, "first", "second")
        shares.end("second")
        fill(shares, "first", "second")
    for amount in (shares.held_by("first"), shares.held_by("second"), shares.free):
        assert abs(amount - 20) <= 1


def test_a_newcomer_may_begin_with_anything_that_is_free():
    shares = Shares(60)
    fill(shares, "a")
    assert not shares.begin("b", 31)
    assert shares.begin("b", 30)
    assert not shares.begin("c")


def test_the_only_user_of_a_local_system_may_hold_everything():
    shares = Shares(8)
    assert fill(shares, None) == [8]
    assert not shares.begin("a")
    shares.end(None, 8)
    assert shares.free == 8


def test_more_than_is_held_cannot_end():
    shares = Shares(8)
    shares.begin("a", 3)
    with pytest.raises(ValueError, match="'a' holds 3, and ends 4"):
        shares.end("a", 4)
    with pytest.raises(ValueError, match="'b' holds 0, and ends 1"):
        shares.end("b")
    assert (shares.held_by("a"), shares.free) == (3, 5)


def test_callers_share_by_tenant_unless_nobody_is_known():
    named = Principal("acme", "ana", PrincipalKind.API_KEY, frozenset())
    assert [caller.sharing_tenant for caller in (named, work_of("acme"), LOCAL)] == ["acme", "acme", None]


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "c", None]), st.integers(0, 9)), max_size=80)


@given(st.integers(0, 40), st.sampled_from([0.25, 0.5, 1.0]), STEPS)
def test_the_capacity_is_kept_and_newcomers_find_room(capacity, weight, steps):
    shares, held = Shares(capacity, weight=weight), {}
    for begins, owner, amount in steps:
        holds, free = held.get(owner, 0), capacity - sum(held.values())
        if begins:
            is_allowed = shares.begin(owner, amount)
            if not holds or owner is None:
                assert is_allowed == (amount <= free)
            elif is_allowed and amount:
                assert holds + amount <= math.floor(weight * free)
                assert free - amount >= holds, "an owner that has something leaves as much as it had"
            if is_allowed:
                held[owner] = holds + amount
        elif holds:
            shares.end(owner, min(amount, holds))
            held[owner] -= min(amount, holds)
        assert shares.free == capacity - sum(held.values()) >= 0
        assert all(shares.held_by(name) == number for name, number in held.items())
    for owner, amount in held.items():
        shares.end(owner, amount)
    assert shares.free == capacity
    assert not shares._held, "owners that hold nothing are forgotten"
