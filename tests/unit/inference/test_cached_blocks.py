"""The numbered changes of cached blocks, as a gateway replays them, against the tree that they come from."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.inference.app.block_events import BlockReport, EngineState
from services.inference.app.workload import Load
from services.inference.core.cached_blocks import BLOCK_TOKENS, MAX_BATCH_BLOCKS, BlockLog
from services.inference.core.scheduling.cache_owners import SHARED_OWNER, cache_keys
from services.inference.core.scheduling.prefix_tree import CachedRun, PrefixTree
from services.inference.vllm.events import BatchEncoder
from tests.support.block_index import BlockIndex
from tests.support.examples import examples

BASE = 1000
ME, OTHER = 1, 2
PIECES = st.tuples(st.integers(0, 2), st.sampled_from([3, BLOCK_TOKENS, 20, 40]))


class Reader:
    """A stream: it encodes what it reads, and its reader replays that."""

    def __init__(self, sequence=0):
        self.index = BlockIndex()
        self.index.sequence = sequence
        self._encoder = BatchEncoder()

    def read(self, log, most=None):
        batches = log.since(self.index.sequence + 1 if self.index.sequence else 0, 2.0)
        for batch in batches[:most]:
            report = BlockReport(batch.sequence, EngineState(Load(), 0, None), batch)
            self.index.apply(self._encoder.encode(report))
        return batches


class LogAgainstTree(RuleBasedStateMachine):
    """Runs sequences of two owners through a tree, and looks at it in between."""

    @initialize(idle=st.integers(0, 200), parked=st.integers(0, 200), history=st.sampled_from([0, 5, 40, 8192]))
    def start(self, idle, parked, history):
        self.tree = PrefixTree(capacity_tokens=400, max_sequences=6, max_idle_tokens=idle, max_parked_tokens=parked)
        self.log = BlockLog(BASE, history)
        self.steady, self.slow = Reader(), Reader()
        self.held = {}  # running sequence -> owner and tokens
        self.sent = set()

    @rule(owner=st.sampled_from([ME, OTHER]), pieces=st.lists(PIECES, min_size=1, max_size=3))
    def send(self, owner, pieces):
        tokens = [token for token, count in pieces for _ in range(count)]
        keys = cache_keys(tokens, owner)
        if not self.tree.make_room(tokens=len(tokens), sequences=1):
            return
        sequence = self.tree.share(keys, len(keys))
        if sequence is None:
            return
        self.held[sequence] = owner
        if self.tree.make_room(tokens=len(keys) - self.tree.length(sequence)):
            self.tree.append(sequence, keys[self.tree.length(sequence) :])
            self.sent.add((owner, tuple(tokens)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_kept=st.booleans())
    def end(self, data, is_kept):
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        (self.tree.release if is_kept else self.tree.close)(sequence)
        del self.held[sequence]

    @precondition(lambda self: self.tree.idle_sequences)
    @rule()
    def evict(self):
        self.tree.make_room(tokens=self.tree.free_tokens + 1)

    @rule()
    def clear(self):
        self.tree.clear()
        self.held.clear()

    @rule()
    def look(self):
        self.log.take(self.tree.runs(), ME, 1.0)
        self.steady.read(self.log)
        assert self.steady.index.beginnings == self.cached_beginnings()

    @rule(most=st.integers(1, 3))
    def read_slowly(self, most):
        self.slow.read(self.log, most)

    @rule()
    def catch_up(self):
        self.look()
        self.slow.read(self.log)
        assert self.slow.index.beginnings == self.cached_beginnings()
        assert self.slow.read(self.log) == []

    def cached_beginnings(self):
        """Return what lookups of everything that the owner sent find."""
        found = set()
        for owner, tokens in self.sent:
            if owner == ME:
                kept = self.tree.kept_length(cache_keys(tokens, owner), len(tokens))
                found |= {tokens[:end] for end in range(BLOCK_TOKENS, kept + 1, BLOCK_TOKENS)}
        return found

    @invariant()
    def an_unchanged_count_of_changes_means_unchanged_tokens(self):
        if not hasattr(self, "tree"):
            return
        seen = getattr(self, "seen", None)
        now = (self.tree.changes, sorted(self.paths()))
        assert seen is None or seen[0] != now[0] or seen[1] == now[1]
        self.seen = now

    def paths(self):
        """Return the tokens of each sequence that the runs make."""
        runs, paths = self.tree.runs(), []
        for run in runs:
            before = paths[run.parent] if run.parent >= 0 else ()
            paths.append(before + run.tokens)
        continued = {run.parent for run in runs}
        return {path for index, path in enumerate(paths) if index not in continued}


TestLogAgainstTree = LogAgainstTree.TestCase
TestLogAgainstTree.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def runs_of(*sequences):
    return [CachedRun(-1, tuple(keys)) for keys in sequences]


def own(count, owner=ME, first=0):
    return cache_keys(range(first, first + count), owner)


def beginnings_of(runs, owner=ME):
    log, reader = BlockLog(BASE), Reader()
    log.take(runs, owner, 1.0)
    reader.read(log)
    return reader.index.beginnings


def test_only_whole_blocks_are_told():
    assert beginnings_of(runs_of(own(BLOCK_TOKENS - 1))) == set()
    assert beginnings_of(runs_of(own(2 * BLOCK_TOKENS + 5))) == {tuple(range(16)), tuple(range(32))}


def test_a_block_may_reach_over_several_runs():
    ends = [CachedRun(0, tuple(own(count, first=first))) for count, first in ((10, 10), (6, 50))]
    runs = [CachedRun(-1, tuple(own(10))), *ends]
    assert beginnings_of(runs) == {tuple(range(16)), (*range(10), *range(50, 56))}


def test_what_another_owner_sent_is_not_told():
    assert beginnings_of(runs_of(own(40, OTHER))) == set()
    assert beginnings_of(runs_of(own(40, OTHER), own(40)), OTHER) == {tuple(range(16)), tuple(range(32))}


def test_what_all_share_is_told_to_those_who_sent_it():
    shared = CachedRun(-1, tuple(own(32, SHARED_OWNER)))
    assert beginnings_of([shared]) == set()
    assert beginnings_of([shared, CachedRun(0, tuple(own(20, OTHER)))]) == set()
    runs = [shared, CachedRun(0, tuple(own(20, OTHER))), CachedRun(0, tuple(own(17, first=32)))]
    assert beginnings_of(runs) == {tuple(range(end)) for end in (16, 32, 48)}


def test_an_empty_cache_is_one_event():
    log, reader = BlockLog(BASE), Reader()
    log.take(runs_of(own(64)), ME, 1.0)
    reader.read(log)
    log.take((), ME, 2.0)
    (batch,) = reader.read(log)
    assert (batch.is_cleared, batch.removed, batch.time_s) == (True, (), 2.0)
    assert reader.index.beginnings == set()


def test_an_unchanged_cache_makes_no_batch():
    log = BlockLog(BASE)
    for _ in range(2):
        log.take(runs_of(own(64)), ME, 1.0)
    assert log.sequence == BASE + 1


def test_large_changes_and_snapshots_come_in_parts():
    log, reader = BlockLog(BASE), Reader()
    reader.read(log)
    blocks = 2 * MAX_BATCH_BLOCKS + 1
    log.take(runs_of(own(blocks * BLOCK_TOKENS)), ME, 1.0)
    assert [len(batch.stored) for batch in reader.read(log)] == [MAX_BATCH_BLOCKS, MAX_BATCH_BLOCKS, 1]
    late = Reader()
    parts = late.read(log)
    assert [part.snapshot.index for part in parts] == [0, 1, 2]
    assert {part.snapshot.blocks for part in parts} == {blocks}
    assert parts[-1].sequence == log.sequence == reader.index.sequence
    assert late.index.beginnings == reader.index.beginnings
    log.take(runs_of(own(BLOCK_TOKENS)), ME, 2.0)
    assert [len(batch.removed) for batch in reader.read(log)] == [MAX_BATCH_BLOCKS, MAX_BATCH_BLOCKS]


@pytest.mark.parametrize("sequence", [0, 1, BASE, BASE + 3, 2**63])
def test_a_number_that_the_history_does_not_have_gets_a_snapshot(sequence):
    log = BlockLog(BASE)
    log.take(runs_of(own(64)), ME, 1.0)
    (part,) = log.since(sequence, 9.0)
    assert (part.is_cleared, part.snapshot.blocks, part.sequence, part.time_s) == (True, 4, BASE + 1, 9.0)


def test_a_known_number_continues_without_a_snapshot():
    log = BlockLog(BASE)
    for count in (16, 32, 48):
        log.take(runs_of(own(count)), ME, 1.0)
    assert [batch.sequence for batch in log.since(BASE + 2, 9.0)] == [BASE + 2, BASE + 3]
    assert log.since(BASE + 4, 9.0) == []


def test_the_history_is_bounded():
    log = BlockLog(BASE, max_history=10)
    for count in range(1, 40):
        log.take(runs_of(own(count * BLOCK_TOKENS)), ME, 1.0)
    assert [batch.sequence for batch in log.since(log.sequence - 4, 9.0)] == list(
        range(log.sequence - 4, log.sequence + 1)
    )
    assert log.since(log.sequence - 5, 9.0)[0].snapshot is not None
