"""Gives branches sequences of the KV cache, admits waiting requests, and preempts branches when there is no room.

Theory of operation. A branch has a seat while it has a sequence. When cells run out, the branch with the last turn
loses its seat and computes its tokens again later (recomputation instead of swapping, as in vLLM; W. Kwon et al.,
"Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023). When all slots are
taken, a tenant with fewer slots gets a slot from a tenant with more slots, whose last branch is set aside.

Turns determine the order of tenants. Each branch has a round among the branches of its tenant: the first in rank has
round 0, the next has round 1, and so on. All branches of round 0 come before all branches of round 1, regardless of the
order of their requests. Thus a tenant with two hundred requests has one branch in round 0, like a tenant with one
request. A tenant of weight 2 has two branches where a tenant of weight 1 has one branch. Within a round, tenants follow
the order of their last admissions, or of the times at which they began to wait. Within a tenant, branches follow their
ranks.

Invariants:
    1. The branch with the first turn is never preempted.
    2. A branch loses its seat only to a branch of an earlier round, so that two tenants never alternately take each
       other's seats.
    3. Every `FAIR_ADMISSION`-th admission takes the oldest request of its tenant, regardless of its priority.
    4. In a full queue, each owner keeps an equal share of the slots.

Source: weighted round robin, as in M. Katevenis et al., 1991. A count of computed tokens by tenant (VTC, Y. Sheng et
al., OSDI 2024) would also balance long requests against short requests. Rounds bound the wait for the first token.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from pagantic_common.domain.errors import ErrorCode, Overloaded
from services.inference.core.decoding.sampling import Logits
from services.inference.core.scheduling.branches import Branch, Ticket
from services.inference.core.scheduling.prefix_tree import PrefixTree

FAIR_ADMISSION = 4  # see invariant 3

Turn = tuple[float, int, int, tuple[int, int, int]]  # round, last admission, owner, rank; the smallest turn comes first
RETRY_AFTER_S = 1.0


class Seating:
    """The waiting requests, and the branches of the running requests."""

    def __init__(self, tree: PrefixTree, *, max_running: int, queue_capacity: int, memo_rows: int) -> None:
        self.tree = tree
        self.memo = LogitsMemo(memo_rows)
        self.waiting: list[Ticket] = []
        self.branches: list[Branch] = []
        self.preemptions_total = 0
        self.refused_total = 0
        self._max_running = max_running
        self._queue_capacity = queue_capacity
        self._fairness = Fairness()
        self._now_s = 0.0

    def check_capacity(self, owner: int) -> None:
        """Raise Overloaded (INFERENCE_OVERLOADED) if the queue has no slot for another request of an owner.

        In a full queue, each owner still has an equal share of the slots, so that one owner cannot take all slots.
        """
        if len(self.waiting) < self._queue_capacity + max(0, self._free_places):
            return
        queued = Counter(ticket.owner for ticket in self.waiting)
        if queued[owner] >= self._queue_capacity // len({*queued, owner}):
            self.refused_total += 1
            raise Overloaded(
                f"{len(self.waiting)} requests wait already, the limit is {self._queue_capacity}",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )

    def enter(self, ticket: Ticket) -> None:
        """Add a request to the queue."""
        self.waiting.append(ticket)
        self._fairness.join(ticket.owner)

    def seated(self) -> list[Branch]:
        """Return the branches that have a sequence."""
        return [branch for branch in self.branches if branch.sequence_id is not None]

    def tickets(self) -> list[Ticket]:
        """Return all requests, with the waiting requests first."""
        running = {branch.ticket.number: branch.ticket for branch in self.branches}
        return [*self.waiting, *running.values()]

    def fill(self, now_s: float) -> None:
        """Seat as many branches as the cache has room for, then admit requests."""
        self._now_s = now_s
        for branch in self.branches:
            if branch.is_deferred and branch.sequence_id is not None:
                self.share_again(branch, self._needed_length(branch))
        while self._seat_next():
            pass

    def share_again(self, branch: Branch, limit: int) -> None:
        """Make a branch share the tokens that other branches have computed since it was seated."""
        branch.is_deferred = False
        if branch.sequence_id is None or branch.computed >= self.tree.shared_length(branch.keys, limit):
            return
        self.tree.close(branch.sequence_id)
        branch.sequence_id = self.tree.share(branch.keys, limit)
        branch.computed = 0
        if branch.sequence_id is not None:
            branch.computed = self.tree.length(branch.sequence_id)

    def preempt(self, branch: Branch) -> None:
        """Take away a branch's sequence. Its tokens can be shared until their cells are needed."""
        if branch.sequence_id is not None:
            self.tree.release(branch.sequence_id)
        self.unseat(branch)
        self.preemptions_total += 1

    def unseat(self, branch: Branch) -> None:
        """Mark that a branch has no sequence. The branch computes its tokens again later."""
        branch.sequence_id, branch.computed = None, 0

    def remove(self, branch: Branch) -> None:
        """Remove a branch. Later requests can share its kept tokens until their cells are needed."""
        self.branches.remove(branch)
        kept = branch.ticket.request.kept_tokens
        if branch.sequence_id is not None:
            self.tree.truncate(branch.sequence_id, branch.computed if kept is None else min(kept, branch.computed))
            self.tree.release(branch.sequence_id)
            branch.sequence_id = None

    def remove_ticket(self, ticket: Ticket) -> None:
        """Remove a request and its branches."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        for branch in [branch for branch in self.branches if branch.ticket is ticket]:
            self.remove(branch)

    def last_of(self, branches: Sequence[Branch]) -> Branch:
        """Return the branch that loses its seat first."""
        turns = self._fairness.turns(self.branches)
        return max(branches, key=turns.__getitem__)

    @property
    def _free_places(self) -> int:
        """The number of further branches that may run. It is negative if branches parted since the last admission."""
        return self._max_running - sum(not branch.is_set_aside for branch in self.branches)

    def _seat_next(self) -> bool:
        """Seat the branch or admit the request with the first turn.

        Returns False if nothing waits, or if there is no room.
        """
        unseated = [branch for branch in self.branches if branch.sequence_id is None]
        may_admit = bool(self.waiting) and self._may_admit()
        if not unseated and not may_admit:
            return False
        turns = self._fairness.turns(self.branches)
        branch = min(unseated, key=turns.__getitem__, default=None)
        if may_admit:
            ticket, turn = self._fairness.next_of(self.waiting, self.branches)
            if branch is None or turn < turns[branch]:
                return self._admit(ticket, turn, turns)
        return branch is not None and self._seat_again(branch, turns)

    def _may_admit(self) -> bool:
        """Return whether a slot is free, or another tenant may have to give up a slot."""
        return self._free_places > 0 or len(self._owners()) > 1

    def _owners(self) -> set[int]:
        return {ticket.owner for ticket in self.waiting}.union(branch.ticket.owner for branch in self.branches)

    def _seat_again(self, branch: Branch, turns: Mapping[Branch, Turn]) -> bool:
        if branch.is_set_aside and not self._make_place(turns[branch], turns):
            return False
        if not self._seat_or_preempt(branch, turns[branch], turns):
            return False
        branch.is_set_aside = False
        return True

    def _admit(self, ticket: Ticket, turn: Turn, turns: Mapping[Branch, Turn]) -> bool:
        branch = ticket.root()
        if not self._make_place(turn, turns) or not self._seat_or_preempt(branch, turn, turns):
            return False
        self._fairness.admit(ticket, self._owners())
        self.waiting.remove(ticket)
        self.branches.append(branch)
        ticket.seated_s = self._now_s
        return True

    def _make_place(self, turn: Turn, turns: Mapping[Branch, Turn]) -> bool:
        """Make sure that another branch may run, by setting later branches aside.

        Returns False if that is not enough.
        """
        needed = 1 - self._free_places
        if needed <= 0:
            return True
        holders = [branch for branch in self.branches if not branch.is_set_aside]
        # A holder without a seat does not use its slot, so only its turn counts.
        idle = [branch for branch in holders if branch.sequence_id is None and turns[branch] > turn]
        displaced = [*_last_first(idle, turns), *_last_first(_later(self.seated(), turn, turns), turns)][:needed]
        if len(displaced) < needed:
            return False
        for branch in displaced:
            branch.is_set_aside = True
            if branch.sequence_id is not None:
                self.preempt(branch)
        return True

    def _seat_or_preempt(self, branch: Branch, turn: Turn, turns: Mapping[Branch, Turn]) -> bool:
        """Seat a branch, and preempt branches of later rounds if necessary.

        Returns False if that is not enough.
        """
        if self._seat(branch):
            return True
        later = _later(self.seated(), turn, turns)
        if not self._would_suffice(branch, later):
            return False
        for last in _last_first(later, turns):
            self.preempt(last)
            if self._seat(branch):
                return True
        return False

    def _would_suffice(self, branch: Branch, later: Sequence[Branch]) -> bool:
        """Return whether preempting the `later` branches would free roughly enough cells, apart from shared tokens."""
        staying = [seated for seated in self.seated() if seated not in later]
        held = self.tree.held_tokens([seated.sequence_id for seated in staying if seated.sequence_id is not None])
        needed = len(branch.keys) - self.tree.shared_length(branch.keys, self._needed_length(branch))
        return held + sum(seated.pending for seated in staying) + needed <= self.tree.capacity_tokens

    def _seat(self, branch: Branch) -> bool:
        """Give a branch a sequence if the cache has room for the pending tokens of all branches.

        Returns whether the branch got a sequence.
        """
        sequence_id = self.tree.share(branch.keys, self._needed_length(branch))
        if sequence_id is None:
            return False
        computed = self.tree.length(sequence_id)
        pending = sum(seated.pending for seated in self.seated()) + len(branch.tokens) - computed
        if not self.tree.make_room(tokens=pending):
            self.tree.release(sequence_id)
            return False
        branch.sequence_id, branch.computed = sequence_id, computed
        return True

    def _needed_length(self, branch: Branch) -> int:
        """Return the number of tokens that may come from the cache.

        These are all tokens except the last, or all tokens if the memo has the last row.
        """
        is_row_kept = branch.is_likely_to_recur and branch.keys in self.memo
        return len(branch.tokens) - (not is_row_kept)


def _later(branches: Sequence[Branch], turn: Turn, turns: Mapping[Branch, Turn]) -> list[Branch]:
    """Return the branches whose round is later than the round of `turn`."""
    return [branch for branch in branches if turns[branch][0] > turn[0]]


def _last_first(branches: Sequence[Branch], turns: Mapping[Branch, Turn]) -> list[Branch]:
    return sorted(branches, key=turns.__getitem__, reverse=True)


class Fairness:
    """Determines the turns of branches and waiting requests from the admissions of their tenants."""

    def __init__(self) -> None:
        self._admissions = 0
        self._last_admission: dict[int, int] = {}

    def turns(self, branches: Iterable[Branch]) -> Mapping[Branch, Turn]:
        """Return the turn of each branch. The smallest turn comes first."""
        rounds: Counter[int] = Counter()
        turns = {}
        for branch in sorted(branches, key=lambda branch: branch.rank):
            ticket = branch.ticket
            turns[branch] = self._turn(rounds[ticket.owner], ticket, branch.rank)
            rounds[ticket.owner] += 1
        return turns

    def next_of(self, waiting: Sequence[Ticket], branches: Iterable[Branch]) -> tuple[Ticket, Turn]:
        """Return the next request to admit, and its future turn. At least one request must be waiting."""
        running = Counter(branch.ticket.owner for branch in branches)
        by_owner: dict[int, list[Ticket]] = {}
        for ticket in waiting:
            by_owner.setdefault(ticket.owner, []).append(ticket)
        firsts = [self._first_of(tickets) for tickets in by_owner.values()]
        turns = [self._turn(running[ticket.owner], ticket, ticket.rank) for ticket in firsts]
        turn = min(turns)
        return firsts[turns.index(turn)], turn

    def join(self, owner: int) -> None:
        """Record that a request of an owner waits. A new owner comes after the owners that are already waiting."""
        self._last_admission.setdefault(owner, self._admissions)

    def admit(self, ticket: Ticket, active: Iterable[int]) -> None:
        """Record an admission. Only the `active` owners are kept."""
        self._admissions += 1
        self._last_admission[ticket.owner] = self._admissions
        self._last_admission = {owner: self._last_admission.get(owner, 0) for owner in active}

    def _first_of(self, tickets: Sequence[Ticket]) -> Ticket:
        if self._admissions % FAIR_ADMISSION == FAIR_ADMISSION - 1:
            return tickets[0]
        return min(tickets, key=lambda ticket: ticket.rank)

    def _turn(self, place: int, ticket: Ticket, rank: tuple[int, int, int]) -> Turn:
        return (place / ticket.weight, self._last_admission.get(ticket.owner, 0), ticket.owner, rank)


class LogitsMemo:
    """Keeps rows of logits that later draws are likely to need. The least recently used rows are dropped first.

    If a prompt is repeated, or another candidate samples the same tokens, the row is known and only the draw is new.
    The distribution is the same, and nothing is computed.
    """

    def __init__(self, capacity_rows: int) -> None:
        self._capacity_rows = capacity_rows
        self._rows: OrderedDict[tuple[int, ...], Logits] = OrderedDict()

    def __contains__(self, tokens: Sequence[int]) -> bool:
        return bool(self._rows) and tuple(tokens) in self._rows

    def keep(self, tokens: Sequence[int], logits: Logits) -> None:
        """Keep a copy of the row that follows `tokens`."""
        if self._capacity_rows:
            key = tuple(tokens)
            self._rows[key] = logits.copy()
            self._rows.move_to_end(key)
            if len(self._rows) > self._capacity_rows:
                self._rows.popitem(last=False)

    def row(self, tokens: Sequence[int]) -> Logits:
        """Return a copy of the row that follows `tokens`, which must be in the memo."""
        key = tuple(tokens)
        self._rows.move_to_end(key)
        return self._rows[key].copy()

    def clear(self) -> None:
        """Drop all rows."""
        self._rows.clear()
