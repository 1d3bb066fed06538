"""Decides what each step of the engine computes, and what its results change (continuous batching).

Theory of operation. A request becomes branches: candidates that have sampled the same tokens so far are one branch,
with one sequence of the KV cache and one row per step, and part only where they draw different tokens. A branch has
`tokens`, of which the first `computed` are in the cache; the others are pending. A new prompt, a run of forced tokens,
the token that was just sampled, and everything that a preempted branch lost are all only that: pending tokens.

Each step, `decide` gives sequences to branches, lets requests in and has one batch filled (see `batch.py`). When the
cache is full, idle tokens are evicted; when that is not enough, the last branch in rank loses its sequence and computes
it again later. `apply` takes the rows of logits that the batch gave, lets every candidate draw, and says what happened.

Invariants:
    1. A step has at most `step_tokens` tokens, and its cells fit into the cache.
    2. Every candidate of an admitted request ends exactly once, and its request after it.
    3. No branch with pending tokens waits for ever: the first in rank is never preempted, every `FAIR_ADMISSION`-th
       admission takes the request that has waited longest, and no class of work can take the whole batch.
    4. The same calls give the same plans and events.
    5. What a cancelled or expired request holds is given back before the next batch is made.
    6. An error in the sampling, constraint or text of one request ends that request alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded
from services.inference.core.decoding.output import Output, Row, Step
from services.inference.core.decoding.sampling import Logits
from services.inference.core.generation import FinishReason
from services.inference.core.scheduling.batch import Slice, Work, fill_batch
from services.inference.core.scheduling.branches import (
    Branch,
    Candidate,
    DecodeRequest,
    Ended,
    Failed,
    FailureCause,
    Finished,
    Progress,
    Prompted,
    SchedulerEvent,
    Ticket,
)
from services.inference.core.scheduling.drafting import StepCosts
from services.inference.core.scheduling.logits_memo import LogitsMemo
from services.inference.core.scheduling.parked_prefixes import common_length
from services.inference.core.scheduling.prefix_tree import Operation, PrefixTree

FAIR_ADMISSION = 4
RETRY_AFTER_S = 1.0
_MEMO_DEPTH = 8  # output tokens up to which other candidates are likely to come by the same ones


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next: operations on the cache, in order, then one batch, which may be empty; and what has happened."""

    operations: tuple[Operation, ...]
    slices: tuple[Slice, ...]
    events: tuple[SchedulerEvent, ...]
    work: tuple[Work, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a scheduler, all at least 1 but `queue_capacity` and `memo_rows`, which may be 0."""

    step_tokens: int
    max_running: int
    queue_capacity: int
    memo_rows: int = 0


class Scheduler:
    """All requests of one engine. `decide` and then one of `apply`, `refuse` and `fail`, in turn."""

    def __init__(self, tree: PrefixTree, limits: Limits) -> None:
        self.tree = tree
        self.limits = limits
        self.costs = StepCosts()
        self._memo = LogitsMemo(limits.memo_rows)
        self.rows_total = 0
        self.output_tokens_total = 0
        self.preemptions_total = 0
        self._numbers = 0
        self._admissions = 0
        self._steps = 0
        self._waiting: list[Ticket] = []
        self._branches: list[Branch] = []

    @property
    def waiting(self) -> int:
        """Requests that wait for their first step."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that are being decoded."""
        return len(self._branches)

    @property
    def has_work(self) -> bool:
        """Whether `decide` would find something to do."""
        return bool(self._waiting or self._branches or self.tree.operations)

    def check_capacity(self) -> None:
        """Raise Overloaded (INFERENCE_OVERLOADED) when one more request would not be let in."""
        if len(self._waiting) >= self.limits.queue_capacity + max(0, self.limits.max_running - len(self._branches)):
            raise Overloaded(
                f"{len(self._waiting)} requests wait already, the limit is {self.limits.queue_capacity}",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )

    def submit(self, request: DecodeRequest) -> int:
        """Let a request in and return its number; raises Overloaded when too many wait."""
        self.check_capacity()
        self._numbers += 1
        self._waiting.append(Ticket(self._numbers, request))
        return self._numbers

    def cancel(self, number: int) -> None:
        """Give a request up at the next `decide`; one that has ended is left alone."""
        if (ticket := self._ticket(number)) is not None:
            ticket.is_cancelled = True

    def cancel_candidate(self, number: int, index: int) -> None:
        """Give one candidate up at the next `decide`; its neighbours go on."""
        if (ticket := self._ticket(number)) is not None and 0 <= index < len(ticket.candidates):
            ticket.candidates[index].is_cancelled = True

    def decide(self, now_s: float) -> Plan:
        """Return the next step."""
        events: list[SchedulerEvent] = []
        self._drop(now_s, events)
        self._seat_and_admit()
        self._serve_from_memo(events)
        work = self._make_room_for(fill_batch(self._seated(), self.limits.step_tokens, self.costs), events)
        operations = tuple(self.tree.operations)
        self.tree.operations.clear()
        return Plan(operations, tuple(item.slice() for item in work), tuple(events), tuple(work))

    def apply(self, plan: Plan, logits: Logits, cost: float = 0.0) -> list[SchedulerEvent]:
        """Take the rows of logits that a plan's slices asked for, in order; `cost` is what the step took, if known."""
        events: list[SchedulerEvent] = []
        self._steps += 1
        self.costs.learn(sum(item.tokens for item in plan.work), cost)
        for item, part in zip(plan.work, plan.slices, strict=True):
            branch, ticket = item.branch, item.branch.ticket
            self.tree.append(part.sequence_id, part.tokens)
            branch.computed += item.size
            branch.last_served = self._steps
            ticket.rows += item.tokens
            self.rows_total += item.tokens
            if not ticket.is_prompted:
                ticket.prompt_tokens_computed += item.size
        first_row = 0
        for item, part in zip(plan.work, plan.slices, strict=True):
            rows = logits[first_row : first_row + part.logit_rows]
            first_row += part.logit_rows
            # A request may have failed by another branch of it just now: this one is gone then.
            if part.logit_rows and item.branch.sequence_id is not None:
                if self._is_worth_keeping(item.branch):
                    self._memo.keep(item.branch.tokens, rows[0])
                self._continue_branch(item.branch, item.draft, rows, events)
        return events

    def refuse(self, plan: Plan) -> list[SchedulerEvent]:
        """Take note that the cache had no room for a plan and nothing of it was computed."""
        events: list[SchedulerEvent] = []
        last = max((item.branch for item in plan.work), key=lambda branch: branch.rank)
        if len(self._seated()) > 1:
            self._preempt(last)
        elif not self.tree.make_room(tokens=self.tree.free_tokens + 1):
            self._fail(last.ticket, FailureCause.ENGINE, "the KV cache has no room for this request alone", events)
        return events

    def fail(self, plan: Plan | None, reason: str, cause: FailureCause = FailureCause.ENGINE) -> list[SchedulerEvent]:
        """Give up the requests of a plan, or all of them."""
        tickets = {
            b.ticket.number: b.ticket for b in (self._branches if plan is None else [w.branch for w in plan.work])
        }
        if plan is None:
            tickets |= {ticket.number: ticket for ticket in self._waiting}
        events: list[SchedulerEvent] = []
        for ticket in tickets.values():
            self._fail(ticket, cause, reason, events)
        return events

    def start_over(self, reason: str) -> list[SchedulerEvent]:
        """Give up all requests and forget all that is cached: the engine's cache is not what it should be."""
        events = self.fail(None, reason)
        self.tree.clear()
        self._memo.clear()
        return events

    def renew(self, tree: PrefixTree, step_tokens: int) -> None:
        """Go on with an empty cache and steps of another size; only while no sequence is decoded."""
        self.tree = tree
        self.limits = replace(self.limits, step_tokens=step_tokens)
        self.costs = StepCosts()
        self._memo.clear()

    # ---- what ends before a step ------------------------------------------------------------------------------

    def _ticket(self, number: int) -> Ticket | None:
        tickets = [*self._waiting, *(branch.ticket for branch in self._branches)]
        return next((ticket for ticket in tickets if ticket.number == number), None)

    def _drop(self, now_s: float, events: list[SchedulerEvent]) -> None:
        tickets = {ticket.number: ticket for ticket in self._waiting}
        tickets |= {branch.ticket.number: branch.ticket for branch in self._branches}
        for ticket in tickets.values():
            if ticket.is_cancelled:
                self._fail(ticket, FailureCause.CANCELLED, "", events)
            elif ticket.request.deadline.has_passed(now_s):
                self._fail(ticket, FailureCause.DEADLINE, "", events)
        for branch in [b for b in self._branches if any(c.is_cancelled for c in b.candidates)]:
            for candidate in [c for c in branch.candidates if c.is_cancelled]:
                branch.candidates.remove(candidate)
                self._end(branch.ticket, candidate, branch.output, FinishReason.CANCELLED, events)
            if not branch.candidates:
                self._remove(branch)

    def _fail(
        self,
        ticket: Ticket,
        cause: FailureCause,
        reason: str,
        events: list[SchedulerEvent],
        error: BaseException | None = None,
    ) -> None:
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        for branch in [branch for branch in self._branches if branch.ticket is ticket]:
            self._remove(branch)
        events.append(Failed(ticket.number, cause, reason, error))

    def _remove(self, branch: Branch) -> None:
        self._branches.remove(branch)
        if branch.sequence_id is not None:
            self.tree.truncate(branch.sequence_id, branch.computed)
            self.tree.release(branch.sequence_id)
            branch.sequence_id = None

    # ---- who runs ---------------------------------------------------------------------------------------------

    def _seated(self) -> list[Branch]:
        return [branch for branch in self._branches if branch.sequence_id is not None]

    def _seat_and_admit(self) -> None:
        for branch in self._branches:
            if branch.is_deferred and branch.sequence_id is not None:
                self._share_again(branch, self._needed_length(branch))
        for branch in sorted((b for b in self._branches if b.sequence_id is None), key=lambda b: b.rank):
            while not self._seat(branch):
                last = max(self._seated(), key=lambda seated: seated.rank, default=None)
                if last is None or last.rank <= branch.rank:
                    return
                self._preempt(last)
        while self._waiting and len(self._branches) < self.limits.max_running:
            ticket = self._next_ticket()
            branch = ticket.root()
            if not self._seat(branch):
                return
            self._admissions += 1
            self._waiting.remove(ticket)
            self._branches.append(branch)

    def _next_ticket(self) -> Ticket:
        if self._admissions % FAIR_ADMISSION == FAIR_ADMISSION - 1:
            return self._waiting[0]
        return min(self._waiting, key=lambda ticket: (-ticket.request.priority, ticket.number))

    def _seat(self, branch: Branch) -> bool:
        """Give a branch a sequence, if there is room for all that is pending, its own and that of the others."""
        sequence_id = self.tree.share(branch.tokens, self._needed_length(branch))
        if sequence_id is None:
            return False
        computed = self.tree.length(sequence_id)
        pending = sum(seated.pending for seated in self._seated()) + len(branch.tokens) - computed
        if not self.tree.make_room(tokens=pending):
            self.tree.release(sequence_id)
            return False
        branch.sequence_id, branch.computed = sequence_id, computed
        return True

    def _needed_length(self, branch: Branch) -> int:
        """Return how many tokens may come from the cache: the row of the last one is needed, unless it is known."""
        return len(branch.tokens) - (branch.tokens not in self._memo)

    def _share_again(self, branch: Branch, limit: int) -> None:
        """Give a branch what others have computed of its tokens meanwhile."""
        branch.is_deferred = False
        if branch.sequence_id is not None and branch.computed < self.tree.shared_length(branch.tokens, limit):
            self.tree.close(branch.sequence_id)
            branch.sequence_id = self.tree.share(branch.tokens, limit)
            branch.computed = 0 if branch.sequence_id is None else self.tree.length(branch.sequence_id)

    def _preempt(self, branch: Branch) -> None:
        if branch.sequence_id is not None:
            self.tree.release(branch.sequence_id)  # what it held can be found again until the room is needed
        branch.sequence_id, branch.computed = None, 0
        self.preemptions_total += 1

    # ---- what runs --------------------------------------------------------------------------------------------

    def _make_room_for(self, work: list[Work], events: list[SchedulerEvent]) -> list[Work]:
        while work and not self.tree.make_room(tokens=sum(item.tokens for item in work)):
            if any(item.draft for item in work):
                for item in work:
                    item.draft = []
                continue
            seated = self._seated()
            if len(seated) == 1:
                work[0].size = min(work[0].size, self.tree.free_tokens)
                if work[0].size <= 0:
                    self._fail(seated[0].ticket, FailureCause.ENGINE, "the KV cache is too small", events)
                    return []
                continue
            last = max(seated, key=lambda branch: branch.rank)
            self._preempt(last)
            work = [item for item in work if item.branch is not last]
        return work

    def _serve_from_memo(self, events: list[SchedulerEvent]) -> None:
        """Go on with branches whose next row is known and whose cells are there, as long as there are any."""
        known = [branch for branch in self._seated() if self._has_row(branch)]
        while known:
            for branch in known:
                if branch.sequence_id is not None:
                    self._continue_branch(branch, [], self._memo.row(branch.tokens)[np.newaxis], events)
            known = [branch for branch in self._seated() if self._has_row(branch)]

    @staticmethod
    def _is_worth_keeping(branch: Branch) -> bool:
        """Tell whether other candidates are likely to come by the tokens of a branch."""
        ticket = branch.ticket
        return not ticket.is_prompted or (ticket.is_shared and branch.output.output_tokens < _MEMO_DEPTH)

    def _has_row(self, branch: Branch) -> bool:
        if branch.pending > 1 or not self._is_worth_keeping(branch) or branch.tokens not in self._memo:
            return False
        length = len(branch.tokens)
        if branch.pending and self.tree.shared_length(branch.tokens, length) == length:
            self._share_again(branch, length)
        return branch.pending == 0

    # ---- what the results change ------------------------------------------------------------------------------

    def _continue_branch(self, branch: Branch, draft: list[int], rows: Logits, events: list[SchedulerEvent]) -> None:
        ticket = branch.ticket
        if not ticket.is_prompted:
            ticket.is_prompted = True
            cached = max(0, len(ticket.request.tokens) - ticket.prompt_tokens_computed)
            events.append(Prompted(ticket.number, cached))
        try:
            self._advance(branch, draft, rows, events)
        except InvalidRequest as error:  # its constraint cannot be enforced any longer
            self._fail(ticket, FailureCause.CONSTRAINT, str(error), events)
        except BaseException as error:  # noqa: BLE001 - a panic of a library written in Rust is not an Exception
            self._fail(ticket, FailureCause.UNEXPECTED, "", events, error)

    def _advance(self, branch: Branch, draft: list[int], logits: Logits, events: list[SchedulerEvent]) -> None:
        accepted = 0
        while True:
            row = branch.output.rank(logits[accepted])
            groups: dict[int, list[Candidate]] = {}
            for candidate in branch.candidates:
                token = row.choices.pick(candidate.draw() if branch.output.is_random else 0.0)
                groups.setdefault(token, []).append(candidate)
            stays = max(groups, key=lambda token: len(groups[token]))
            if accepted < len(draft) and draft[accepted] in groups:
                stays = draft[accepted]
            for token, candidates in groups.items():
                if token != stays:
                    self._part(branch, candidates, token, row, events)
            branch.candidates = groups[stays]
            step = branch.output.accept(stays, row)
            self._report(branch, step, events)
            if step.finish_reason is not None:
                self._remove(branch)
                return
            branch.tokens.extend(step.tokens)
            matched = common_length(step.tokens, draft[accepted:], len(draft))
            branch.computed += matched
            accepted += matched
            if matched < len(step.tokens):
                break
        if branch.drafter is not None and draft:
            branch.drafter.judge(len(draft), accepted)
        assert branch.sequence_id is not None  # noqa: S101 - it was just computed
        self.tree.truncate(branch.sequence_id, branch.computed)

    def _part(
        self, branch: Branch, candidates: list[Candidate], token: int, row: Row, events: list[SchedulerEvent]
    ) -> None:
        """Let candidates that drew another token go on by themselves."""
        other = Branch(branch.ticket, [], branch.output.fork(), candidates)
        step = other.output.accept(token, row)
        self._report(other, step, events)
        if step.finish_reason is None:
            assert branch.sequence_id is not None  # noqa: S101 - it was just computed
            other.tokens = [*branch.tokens, *step.tokens]
            other.sequence_id = self.tree.fork(branch.sequence_id, branch.computed)
            other.computed = 0 if other.sequence_id is None else branch.computed
            other.last_served = branch.last_served
            self._branches.append(other)

    def _report(self, branch: Branch, step: Step, events: list[SchedulerEvent]) -> None:
        number = branch.ticket.number
        if step.text or step.logprobs:
            indexes = tuple(candidate.index for candidate in branch.candidates)
            events.append(Progress(number, indexes, step.text, branch.output.output_tokens, step.logprobs))
        if step.finish_reason is not None:
            for candidate in branch.candidates:
                self._end(branch.ticket, candidate, branch.output, step.finish_reason, events)

    def _end(
        self,
        ticket: Ticket,
        candidate: Candidate,
        output: Output,
        reason: FinishReason,
        events: list[SchedulerEvent],
    ) -> None:
        tokens = output.output_tokens
        ticket.unfinished -= 1
        ticket.output_tokens += tokens
        ticket.longest_output = max(ticket.longest_output, tokens)
        self.output_tokens_total += tokens
        events.append(Ended(ticket.number, candidate.index, reason, tokens, output.constraint_satisfied))
        if ticket.unfinished == 0:
            events.append(Finished(ticket.number, ticket.output_tokens, ticket.longest_output, ticket.rows))
