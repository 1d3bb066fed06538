"""Gives branches sequences of the KV cache, admits waiting requests, and preempts branches when the cache is full.

A branch has a seat while it has a sequence. When cells run out, the branch that is last in rank loses its seat and
computes its tokens again later; the first in rank never does.
"""

from __future__ import annotations

from pagantic_common.domain.errors import ErrorCode, Overloaded
from services.inference.core.scheduling.branches import Branch, Ticket
from services.inference.core.scheduling.logits_memo import LogitsMemo
from services.inference.core.scheduling.prefix_tree import PrefixTree

RETRY_AFTER_S = 1.0
FAIR_ADMISSION = 4  # every fourth admission takes the oldest request, whatever its priority


class Seating:
    """The waiting requests, and the branches of the running ones."""

    def __init__(self, tree: PrefixTree, *, max_running: int, queue_capacity: int, memo_rows: int) -> None:
        self.tree = tree
        self.memo = LogitsMemo(memo_rows)
        self.waiting: list[Ticket] = []
        self.branches: list[Branch] = []
        self.preemptions_total = 0
        self._max_running = max_running
        self._queue_capacity = queue_capacity
        self._admissions = 0

    def check_capacity(self) -> None:
        """Raise Overloaded (INFERENCE_OVERLOADED) when the queue has no place for one more request."""
        if len(self.waiting) >= self._queue_capacity + max(0, self._free_places):
            raise Overloaded(
                f"{len(self.waiting)} requests wait already, the limit is {self._queue_capacity}",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )

    def seated(self) -> list[Branch]:
        """Return the branches that have a sequence."""
        return [branch for branch in self.branches if branch.sequence_id is not None]

    def tickets(self) -> list[Ticket]:
        """Return all requests, the waiting ones first."""
        running = {branch.ticket.number: branch.ticket for branch in self.branches}
        return [*self.waiting, *running.values()]

    def fill(self) -> None:
        """Seat as many branches as the cache has room for, then admit requests."""
        for branch in self.branches:
            if branch.is_deferred and branch.sequence_id is not None:
                self.share_again(branch, self._needed_length(branch))
        unseated = sorted((branch for branch in self.branches if branch.sequence_id is None), key=lambda b: b.rank)
        if all(self._seat_or_preempt(branch) for branch in unseated):
            self._admit()

    def share_again(self, branch: Branch, limit: int) -> None:
        """Let a branch share the tokens that other branches have computed since it was seated."""
        branch.is_deferred = False
        if branch.sequence_id is None or branch.computed >= self.tree.shared_length(branch.keys, limit):
            return
        self.tree.close(branch.sequence_id)
        branch.sequence_id = self.tree.share(branch.keys, limit)
        branch.computed = 0
        if branch.sequence_id is not None:
            branch.computed = self.tree.length(branch.sequence_id)

    def preempt(self, branch: Branch) -> None:
        """Take a branch's sequence; its tokens can be shared until their cells are needed."""
        if branch.sequence_id is not None:
            self.tree.release(branch.sequence_id)
        branch.sequence_id, branch.computed = None, 0
        self.preemptions_total += 1

    def remove(self, branch: Branch) -> None:
        """Remove a branch; its computed tokens can be shared until their cells are needed."""
        self.branches.remove(branch)
        if branch.sequence_id is not None:
            self.tree.truncate(branch.sequence_id, branch.computed)
            self.tree.release(branch.sequence_id)
            branch.sequence_id = None

    def remove_ticket(self, ticket: Ticket) -> None:
        """Remove a request and its branches."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        for branch in [branch for branch in self.branches if branch.ticket is ticket]:
            self.remove(branch)

    @property
    def _free_places(self) -> int:
        """How many more branches may run; negative when branches have parted since the last admission."""
        return self._max_running - len(self.branches)

    def _seat_or_preempt(self, branch: Branch) -> bool:
        """Seat a branch, preempting branches after it in rank if necessary; False if that does not suffice."""
        while not self._seat(branch):
            last = max(self.seated(), key=lambda seated: seated.rank, default=None)
            if last is None or last.rank <= branch.rank:
                return False
            self.preempt(last)
        return True

    def _admit(self) -> None:
        while self.waiting and self._free_places > 0:
            ticket = self._next_ticket()
            branch = ticket.root()
            if not self._seat(branch):
                return
            self._admissions += 1
            self.waiting.remove(ticket)
            self.branches.append(branch)

    def _next_ticket(self) -> Ticket:
        if self._admissions % FAIR_ADMISSION == FAIR_ADMISSION - 1:
            return self.waiting[0]
        return min(self.waiting, key=lambda ticket: (-ticket.request.priority, ticket.number))

    def _seat(self, branch: Branch) -> bool:
        """Give a branch a sequence if the cache has room for all pending tokens, its own and the others'."""
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
        """Return how many tokens may come from the cache; the last is computed for its row, unless that is kept."""
        return len(branch.tokens) - (branch.keys not in self.memo)
