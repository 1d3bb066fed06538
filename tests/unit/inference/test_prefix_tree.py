"""The tree against a plain model of the cache: what each sequence holds, and how many cells that takes."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.inference.core.scheduling.operations import Adopt, CopyPrefix, Drop, Park, Truncate, Unpark
from services.inference.core.scheduling.prefix_tree import PrefixTree
from tests.support.examples import examples

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6) | st.integers(0, 2).map(lambda token: [token] * 18)


class TreeAgainstCache(RuleBasedStateMachine):
    """Runs random calls and carries out the tree's operations on a cache of numbered cells."""

    @initialize(
        capacity=st.integers(12, 90), sequences=st.integers(1, 5), idle=st.integers(0, 20), parked=st.integers(0, 60)
    )
    def start(self, capacity, sequences, idle, parked):
        self.tree = PrefixTree(
            capacity_tokens=capacity, max_sequences=sequences, max_idle_tokens=idle, max_parked_tokens=parked
        )
        self.parked_limit = parked
        # Each key has the position of its first token, and its tokens.
        self.parked: dict[int, tuple[int, list[int]]] = {}
        self.capacity = capacity
        self.cells: dict[int, list[tuple[int, int]]] = {}  # sequence -> (token, cell)
        self.held: dict[int, list[int]] = {}  # running sequence -> tokens
        self.next_cell = 0

    def carry_out(self):
        for operation in self.tree.operations:
            match operation:
                case CopyPrefix(source, target, length):
                    shared, before = self.cells[source][:length], self.cells.get(target, [])
                    assert len(shared) == length
                    assert not before or [t for t, _ in before[:length]] == [t for t, _ in shared]
                    self.cells[target] = shared + before[length:]
                case Truncate(sequence, length):
                    self.cells[sequence] = self.cells.get(sequence, [])[:length]
                case Park(sequence, start, end, key):
                    copied = [token for token, _ in self.cells[sequence][start:end]]
                    assert len(copied) == end - start
                    self.parked[key] = (start, copied)
                case Adopt(key, cells):
                    self.parked[key] = (int(cells[0]), cells[1:].tolist())
                case Unpark(key, sequence, length):
                    start, tokens = self.parked[key]
                    held = self.cells.setdefault(sequence, [])
                    assert len(held) == start
                    held += [(token, self.new_cell()) for token in tokens]
                    assert len(self.distinct_cells()) <= self.capacity
                    del held[length:]
                case Drop(key):
                    del self.parked[key]
        self.tree.operations.clear()

    def distinct_cells(self):
        return {cell for held in self.cells.values() for _, cell in held}

    def new_cell(self):
        self.next_cell += 1
        return self.next_cell

    @rule(tokens=TOKENS)
    def share(self, tokens):
        held = [[token for token, _ in cells] for cells in self.cells.values()]
        cached = max((common(tokens, run) for run in held), default=0)
        found = self.tree.shared_length(tokens, len(tokens))
        assert found <= cached
        found = max(found, *(common(tokens, run) for run in self.tree.parked.entries), 0)
        sequence = self.tree.share(tokens, len(tokens))
        self.carry_out()
        if sequence is None:
            assert len(self.held) == 0 or self.tree.idle_sequences == 0
        else:
            assert sequence not in self.held
            self.held[sequence] = tokens[: self.tree.length(sequence)]
            assert self.tree.length(sequence) <= found

    @rule(block=TOKENS, others=st.lists(st.integers(0, 2), max_size=2))
    def adopt(self, block, others):
        """Adopt blocks of one length; all but the first are of one token, so that they have much in common."""
        blocks = [block, *([token] * len(block) for token in others)]
        tokens = [token for run in blocks for token in run]
        parked = any(list(run[: len(tokens)]) == tokens for run in self.tree.parked.entries)
        is_adopted = self.tree.adopt(tokens, [np.array([index * len(block), *run]) for index, run in enumerate(blocks)])
        self.carry_out()
        assert is_adopted == (not parked and len(tokens) <= self.parked_limit)
        assert not is_adopted or self.tree.kept_length(tokens, len(tokens)) == len(tokens)

    @rule(tokens=TOKENS, data=st.data())
    def hold(self, tokens, data):
        length = data.draw(st.integers(1, len(tokens)))
        holder = self.tree.holder(tokens, length)
        assert (holder is not None) == (self.tree.shared_length(tokens, length) == length)
        if holder is not None:
            assert [token for token, _ in self.cells[holder][:length]] == tokens[:length]

    @rule()
    def clear(self):
        self.tree.clear()
        self.carry_out()
        self.held.clear()
        assert not any(self.cells.values())
        assert not self.parked

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=TOKENS)
    def append(self, data, tokens):
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        if not self.tree.make_room(tokens=len(tokens)):
            assert self.tree.idle_sequences == 0
            self.carry_out()
            return
        self.carry_out()
        self.tree.append(sequence, tokens)
        self.held[sequence] = self.held[sequence] + tokens
        for token in tokens:
            self.cells.setdefault(sequence, []).append((token, self.new_cell()))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data):
        source = data.draw(st.sampled_from(sorted(self.held)))
        length = data.draw(st.integers(0, len(self.held[source])))
        target = self.tree.fork(source, length)
        self.carry_out()
        if target is not None:
            self.held[target] = self.held[source][:length]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def truncate(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        length = data.draw(st.integers(0, len(self.held[sequence])))
        self.tree.truncate(sequence, length)
        self.carry_out()
        self.held[sequence] = self.held[sequence][:length]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_kept=st.booleans())
    def end(self, data, is_kept):
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        (self.tree.release if is_kept else self.tree.close)(sequence)
        self.carry_out()
        del self.held[sequence]

    @invariant()
    def what_running_sequences_hold_is_what_the_cache_holds(self):
        for sequence, tokens in getattr(self, "held", {}).items():
            assert self.tree.tokens(sequence) == tokens
            assert [token for token, _ in self.cells.get(sequence, [])] == tokens

    @invariant()
    def used_tokens_are_the_distinct_cells(self):
        if hasattr(self, "tree"):
            assert self.tree.used_tokens == len(self.distinct_cells()) <= self.capacity

    @invariant()
    def parked_pieces_are_the_parked_entries(self):
        if hasattr(self, "tree"):
            parked = self.tree.parked
            used = set()
            for tokens in parked.entries:
                pieces = parked.find(tokens, len(tokens))[0].pieces
                joined = [token for piece in pieces for token in self.parked[piece.key][1]]
                assert joined == list(tokens)
                assert all(self.parked[piece.key][0] == piece.start for piece in pieces)
                used |= {piece.key for piece in pieces}
            assert used == set(self.parked)
            held = sum(len(tokens) for _, tokens in self.parked.values())
            assert held == parked.parked_tokens <= self.parked_limit


def common(first, second):
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


TestTreeAgainstCache = TreeAgainstCache.TestCase
TestTreeAgainstCache.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def opened(tree, tokens):
    sequence = tree.share(tokens, len(tokens))
    tree.append(sequence, tokens[tree.length(sequence) :])
    return sequence


def park_all(tree):
    """Let all idle sequences leave the cache; return the runs of tokens that are copied for it."""
    assert tree.make_room(tokens=tree.capacity_tokens)
    copied = [(one.start, one.end) for one in tree.operations if isinstance(one, Park)]
    tree.operations.clear()
    return copied


def test_a_prefix_that_entries_share_is_copied_once_for_all_of_them():
    tree = PrefixTree(capacity_tokens=200, max_sequences=4, max_idle_tokens=200, max_parked_tokens=1000)
    copied = []
    for answer in range(4):
        tree.release(opened(tree, [*range(100, 140), *[answer] * 20]))
        copied.append(park_all(tree))
    assert copied == [[(0, 60)], [(0, 40), (40, 60)], [(40, 60)], [(40, 60)]]
    assert tree.parked.parked_tokens == 60 + 40 + 3 * 20


def test_only_what_the_cache_does_not_have_is_copied_back():
    tree = PrefixTree(capacity_tokens=200, max_sequences=4, max_idle_tokens=200, max_parked_tokens=1000)
    shared = list(range(100, 140))
    for answer in range(3):
        tree.release(opened(tree, [*shared, *[answer] * 20]))
        park_all(tree)
    running = opened(tree, [*shared, 7])
    tree.operations.clear()
    second = tree.share([*shared, *[1] * 20, 9], 61)
    pieces = tree.parked.find([*shared, *[1] * 20], 60)[0].pieces
    assert tree.operations == [
        CopyPrefix(running, second, 40),
        Unpark(pieces[1].key, second, 60),
        CopyPrefix(running, second, 40),
    ]


def test_a_running_sequence_shares_what_it_has_computed():
    tree = PrefixTree(capacity_tokens=100, max_sequences=4, max_idle_tokens=0)
    first = opened(tree, [1, 2, 3, 4])
    second = tree.share([1, 2, 3, 9], 4)
    assert tree.length(second) == 3
    assert tree.operations == [CopyPrefix(first, second, 3)]
    assert tree.used_tokens == 4


def test_a_finished_sequence_is_found_again_until_room_is_needed():
    tree = PrefixTree(capacity_tokens=10, max_sequences=4, max_idle_tokens=10)
    tree.release(opened(tree, [1, 2, 3]))
    tree.release(opened(tree, [5, 6, 7, 8]))
    assert tree.shared_length([1, 2, 3, 4], 4) == 3
    assert tree.make_room(tokens=5)
    assert tree.shared_length([1, 2, 3, 4], 4) == 0
    assert tree.shared_length([5, 6, 7], 3) == 3


def test_what_is_shared_outlives_the_answers_that_follow_it():
    tree = PrefixTree(capacity_tokens=100, max_sequences=8, max_idle_tokens=8)
    for answer in range(10, 30):
        tree.release(opened(tree, [1, 2, 3, answer, answer + 100, answer + 200]))
    assert tree.shared_length([1, 2, 3, 4], 4) == 3
    assert tree.used_tokens <= 8


def test_twins_go_with_their_sequences():
    tree = PrefixTree(capacity_tokens=100, max_sequences=4, max_idle_tokens=100)
    first, second = tree.share([1], 0), tree.share([1], 0)
    tree.append(first, [1, 2])
    tree.append(second, [1, 3])
    assert tree.used_tokens == 4
    tree.release(second)
    assert tree.used_tokens == 2
    tree.release(first)
    assert tree.shared_length([1, 2], 2) == 2
