"""The order in which tenants get seats, cells and prompt tokens when there are not enough for all.

Theory of operation. Each branch has a round among the branches of its tenant: the first in rank has round 0, the next
one round 1, and so on. All of round 0 come before all of round 1, whoever asked first, so a tenant with two hundred
requests has one branch in round 0 like a tenant with one. A tenant of weight 2 has two branches where others have one.
Within a round tenants follow the order in which they were last admitted, or began to wait. The order within a tenant
is that of ranks. A branch gives up its seat only to a branch of an earlier round, so that two tenants do not take each
other's seats in alternation.

Source: weighted round robin, as in M. Katevenis et al., 1991. A count of computed tokens by tenant (VTC, Y. Sheng et
al., OSDI 2024) would also even out long against short requests; rounds bound the wait for the first token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from services.inference.core.scheduling.branches import Branch, Ticket

FAIR_ADMISSION = 4  # every fourth admission takes the oldest request of its tenant, whatever its priority

Turn = tuple[float, int, int, tuple[int, int, int]]  # round, last admission, owner, rank


class Fairness:
    """Knows the order of all branches and requests, their turns, and who was admitted when."""

    def __init__(self) -> None:
        self._admissions = 0
        self._last_admission: dict[int, int] = {}

    def turns(self, branches: Iterable[Branch]) -> Mapping[Branch, Turn]:
        """Return the turn of each branch; the least comes first."""
        taken: Counter[int] = Counter()
        turns = {}
        for branch in sorted(branches, key=lambda branch: branch.rank):
            ticket = branch.ticket
            turns[branch] = self._turn(taken[ticket.owner], ticket, branch.rank)
            taken[ticket.owner] += 1
        return turns

    def next_of(self, waiting: Sequence[Ticket], branches: Iterable[Branch]) -> tuple[Ticket, Turn]:
        """Return the waiting request that is admitted next, and the turn that it will have; at least one waits."""
        running = Counter(branch.ticket.owner for branch in branches)
        by_owner: dict[int, list[Ticket]] = {}
        for ticket in waiting:
            by_owner.setdefault(ticket.owner, []).append(ticket)
        firsts = [self._first_of(tickets) for tickets in by_owner.values()]
        turns = [self._turn(running[ticket.owner], ticket, ticket.rank) for ticket in firsts]
        turn = min(turns)
        return firsts[turns.index(turn)], turn

    def join(self, owner: int) -> None:
        """Note that a request of an owner waits; one who is new comes after those who wait already."""
        self._last_admission.setdefault(owner, self._admissions)

    def admit(self, ticket: Ticket, active: Iterable[int]) -> None:
        """Note that a request is admitted; only the `active` owners are remembered."""
        self._admissions += 1
        self._last_admission[ticket.owner] = self._admissions
        self._last_admission = {owner: self._last_admission.get(owner, 0) for owner in active}

    def _first_of(self, tickets: Sequence[Ticket]) -> Ticket:
        if self._admissions % FAIR_ADMISSION == FAIR_ADMISSION - 1:
            return tickets[0]
        return min(tickets, key=lambda ticket: ticket.rank)

    def _turn(self, place: int, ticket: Ticket, rank: tuple[int, int, int]) -> Turn:
        return (place / ticket.weight, self._last_admission.get(ticket.owner, 0), ticket.owner, rank)
