"""Chains of audit records: whatever is done to a record is found."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.calls.audit import START, AuditEntry, Decision, find_problems, follow

TEXT = st.text(max_size=8)
ENTRIES = st.builds(
    AuditEntry,
    st.integers(0, 2**53),
    *(TEXT for _ in range(7)),
    st.sampled_from([decision.value for decision in Decision]),
    TEXT,
)
KEYS = st.sampled_from([b"", b"a secret of sixteen"])


def chain(entries, key=b"", owner="one"):
    records, previous = [], START
    for position, entry in enumerate(entries, 1):
        records.append(follow(owner, position, previous, entry, key))
        previous = records[-1].digest
    return records


def changed(value):
    """Return values that differ from one."""
    if isinstance(value, int):
        return [value + 1, -value - 1]
    if isinstance(value, bytes):
        return [bytes([byte ^ (place == at) for place, byte in enumerate(value)]) for at in range(len(value))] + [b""]
    return [f"{value} ", f" {value}", f"{value}\0", value[:-1] or f"{value}x"]


@given(st.lists(ENTRIES, max_size=5), KEYS)
def test_what_nobody_touched_fits(entries, key):
    records = chain(entries, key)
    assert list(find_problems(records, key)) == []
    for begin in range(len(records)):
        assert list(find_problems(records[begin:], key)) == [], "old records are purged from the beginning"


@given(st.lists(ENTRIES, min_size=1, max_size=4), KEYS, st.data())
def test_a_record_that_was_changed_is_found(entries, key, data):
    records = chain(entries, key)
    at = data.draw(st.integers(0, len(records) - 1))
    record = records[at]
    for name in [field.name for field in fields(AuditEntry)]:
        for value in changed(getattr(record.entry, name)):
            touched = replace(record, entry=replace(record.entry, **{name: value}))
            assert list(find_problems([*records[:at], touched, *records[at + 1 :]], key)), (name, value)
    for name in ("owner", "position", "previous", "digest"):
        for value in changed(getattr(record, name)):
            touched = replace(record, **{name: value})
            assert list(find_problems([*records[:at], touched, *records[at + 1 :]], key)), (name, value)


@given(st.lists(ENTRIES, min_size=3, max_size=5, unique=True), KEYS, st.data())
def test_records_that_were_removed_moved_or_added_are_found(entries, key, data):
    records = chain(entries, key)
    at = data.draw(st.integers(1, len(records) - 2))
    without = records[:at] + records[at + 1 :]
    swapped = [*records[: at - 1], records[at], records[at - 1], *records[at + 1 :]]
    twice = [*records[:at], records[at], *records[at:]]
    for touched in (without, swapped, twice):
        assert list(find_problems(touched, key))


@given(st.lists(ENTRIES, min_size=2, max_size=4))
def test_a_chain_that_was_computed_again_is_found_where_there_is_a_key(entries):
    records = chain(entries, b"a secret of sixteen")
    forged = chain([replace(entries[0], subject="nobody at all"), *entries[1:]])
    assert list(find_problems(forged, b"a secret of sixteen"))
    assert list(find_problems(records, b"another secret here"))
    assert list(find_problems(records))


def test_chains_of_several_orchestrators_do_not_mix():
    entry = AuditEntry(1, "t", "s", "api_key", "k", "m", "r", "i", "allowed")
    one, two = chain([entry] * 3), chain([entry] * 2, owner="two")
    assert list(find_problems([*one, *two])) == []
    (problem,) = find_problems([one[0], one[2], *two])
    assert (problem.owner, problem.position) == ("one", 2)
    assert "missing" in problem.what


@pytest.mark.parametrize("previous", [b"", b"x" * 32])
def test_a_first_record_begins_a_chain(previous):
    entry = AuditEntry(1, "t", "s", "api_key", "k", "m", "r", "i", "allowed")
    (problem,) = find_problems([follow("one", 1, previous, entry)])
    assert problem.what == "is not the beginning of a chain"
