"""Plans the steps of the engine, and applies their results (continuous batching).

Theory of operation. A request is a ticket. Its candidates are its answers. Candidates that have sampled the same tokens
so far are one branch, with one sequence of the KV cache and one row per step. They split only where they draw different
tokens. A branch has `tokens`, of which the first `computed` are in the cache. The other tokens are pending. Pending
tokens come from a new prompt, from a run of forced tokens, from the last draw, or from a preemption. The scheduler
treats all pending tokens alike, so prefill, decoding and recomputation are one mechanism.

A step has three parts:

    decide (under the loop's lock): End cancelled and expired requests. Give sequences to branches and admit requests
        (`seating.py`). Advance branches whose next row of logits is kept. Fill one batch (`batch.py`). Plan the drafts
        of a draft model (`draft_model.py`). Make room in the cache.
    decode (without the lock): Apply the operations on cells, and compute the batch.
    apply (under the loop's lock): Enter the computed tokens into the tree. Draw from the row of each candidate, verify
        drafts, split branches, and return the events (`advancing.py`).

When the cache is full, idle tokens are evicted. If that is not enough, the branch with the last turn loses its
sequence and computes its tokens again later. `refuse` handles a cache that is still full, `fail` handles a failed step,
and `compute_again` handles a failed operation on cells.

The scheduler is pure: time is an argument, randomness belongs to the requests, and the engine's work is a plan. A test
can therefore replay any history and compare the cache's bookkeeping with a model.

Invariants:
    1. A step has at most `step_tokens` tokens, or `prompt_step_tokens` if it computes no output, and its cells fit into
       the cache.
    2. Every candidate of an admitted request ends exactly once, and the request ends after its candidates.
    3. No branch with pending tokens waits indefinitely. The branch with the first turn is never preempted, and every
       `FAIR_ADMISSION`-th admission takes the oldest request of its tenant. No class of work and no tenant can take the
       whole batch.
    4. The scheduler is deterministic: the same calls return the same plans and events.
    5. A cancelled or expired request returns its sequences before the next batch is made.
    6. An error in the sampling, constraint or text of one request ends only that request.

Sources: iteration-level (continuous) batching, G.-I. Yu et al., "Orca: A Distributed Serving System for
Transformer-Based Generative Models", OSDI 2022; prompts computed in chunks together with decoding, A. Agrawal et al.,
"Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024; a radix tree of cached prefixes, L.
Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024; prompt lookup decoding,
A. Saxena, 2023.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from services.inference.core.decoding.sampling import Logits
from services.inference.core.generation import PromptPrefixes
from services.inference.core.scheduling.advancing import Advancing
from services.inference.core.scheduling.batch import Slice, StepBudget, Turn, Work, fill_batch, turn_of
from services.inference.core.scheduling.branches import Branch, DecodeRequest, FailureCause, SchedulerEvent, Ticket
from services.inference.core.scheduling.cache_owners import CacheOwners
from services.inference.core.scheduling.draft_model import DraftModel
from services.inference.core.scheduling.drafting import DraftCount, StepCosts
from services.inference.core.scheduling.operations import Cells, Drop, Operation, Save
from services.inference.core.scheduling.prefix_tree import CachedRun, PrefixTree
from services.inference.core.scheduling.seating import Seating
from services.inference.core.scheduling.stored_blocks import SAVES_PER_STEP, Saving

MAX_PROMPTS = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step: the operations on the cache in order, the batch, which may be empty, and the events so far."""

    operations: tuple[Operation, ...]
    slices: tuple[Slice, ...]
    events: tuple[SchedulerEvent, ...]
    work: tuple[Work, ...] = ()

    def with_drafts(self) -> Plan:
        """Return the plan with the drafts that the draft model has put into its work."""
        if not any(item.is_guessed for item in self.work):
            return self
        return replace(self, slices=tuple(map(Work.plan_slice, self.work)))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a scheduler. Each limit is at least 1, except that `queue_capacity` and `memo_rows` may be 0.

    A tenant that is not in `weights` has the weight 1. `prompt_step_tokens` is at least `step_tokens`; a value of 0
    means `step_tokens`. Without `mixes_steps`, outputs and prompts take turns.
    """

    step_tokens: int
    max_running: int
    queue_capacity: int
    memo_rows: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    prompt_step_tokens: int = 0
    mixes_steps: bool = True


class Scheduler:
    """Schedules all requests of one engine. Alternate between `decide` and one of `apply`, `refuse` and `fail`.

    The batches of a draft model come between these two calls.

    Attributes:
        tree: The tokens in the cache.
        rows_total: The number of tokens computed so far.
    """

    def __init__(
        self, tree: PrefixTree, limits: Limits, saving: Saving | None = None, draft_model: DraftModel | None = None
    ) -> None:
        self.tree = tree
        self.limits = limits
        self.saving = saving or Saving()
        self.draft_model = draft_model
        self.looked_up = DraftCount()
        self.guessed = DraftCount()
        self.costs = StepCosts()
        self._prompt_costs = StepCosts()
        self.rows_total = 0
        self._seating = Seating(
            tree,
            max_running=limits.max_running,
            queue_capacity=limits.queue_capacity,
            memo_rows=limits.memo_rows,
        )
        self._memo = self._seating.memo
        self._advancing = Advancing(self._seating)
        self._owners = CacheOwners()
        self._cached_prompts = CachedPrompts()
        self._numbers = 0
        self._steps = 0
        self._last_turn = Turn.OUTPUTS
        self._now_s = 0.0

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their first step."""
        return len(self._seating.waiting)

    @property
    def running(self) -> int:
        """The number of sequences that are being decoded."""
        return len(self._seating.branches)

    @property
    def pending_prompt_tokens(self) -> int:
        """The number of prompt tokens that are not computed yet.

        For waiting requests, the number that the cache already has is an estimate.
        """
        running = sum(branch.pending for branch in self._seating.branches if not branch.ticket.is_prompted)
        return running + self.queued_prompt_tokens

    @property
    def queued_prompt_tokens(self) -> int:
        """The part of `pending_prompt_tokens` that belongs to waiting requests."""
        return sum(ticket.expected_prompt_tokens for ticket in self._seating.waiting)

    @property
    def output_tokens_total(self) -> int:
        """The number of tokens of all candidates so far, including running and failed candidates."""
        return self._advancing.output_tokens_total

    @property
    def preemptions_total(self) -> int:
        """The number of times that a branch has lost its sequence."""
        return self._seating.preemptions_total

    @property
    def refused_total(self) -> int:
        """The number of requests that were rejected because the queue was full."""
        return self._seating.refused_total

    @property
    def has_work(self) -> bool:
        """Whether `decide` has anything to plan or to end."""
        is_storing = bool(self.tree.operations) or self.saving.has_pending
        return is_storing or bool(self._seating.waiting or self._seating.branches)

    def cached_keys(self, reviewed: int) -> frozenset[int]:
        """Return the callers' keys of cached prompt prefixes, after a check of up to `reviewed` prompts."""
        self._cached_prompts.review(self.tree, reviewed)
        return frozenset(self._cached_prompts.keys)

    def cached_runs(self, tenant: str) -> tuple[int, list[CachedRun]]:
        """Return the number that identifies a tenant's tokens, and the cached and parked tokens of all owners."""
        return self._owners.number_of(tenant), self.tree.runs()

    def kept_tokens(self, request: DecodeRequest) -> int:
        """Return the number of tokens of a prompt that are cached or parked."""
        return self.tree.kept_length(request.keys(self._owners), len(request.tokens))

    def adopt(self, request: DecodeRequest, pieces: Sequence[Cells]) -> bool:
        """Park the first blocks of a prompt, which were read from the store.

        Returns False if the blocks do not fit or are no longer needed.
        """
        if not pieces or request.blocks.root != self.saving.root:
            return False
        keys = request.keys(self._owners)
        if not self.tree.adopt(keys[: len(pieces) * self.saving.block_tokens], pieces):
            return False
        self.saving.know(request.blocks.names[: len(pieces)], self._now_s)
        return True

    def check_capacity(self, tenant: str) -> None:
        """Raise Overloaded (INFERENCE_OVERLOADED) if the queue has no slot for another request of a tenant."""
        self._seating.check_capacity(self._owners.number_of(tenant))

    def submit(self, request: DecodeRequest) -> int:
        """Queue a request and return its number. Raises Overloaded if the queue is full."""
        owner = self._owners.number_of(request.tenant)
        self._seating.check_capacity(owner)
        self._numbers += 1
        weight = self.limits.weights.get(request.tenant, 1.0)
        ticket = Ticket(self._numbers, request, self._owners, weight)
        ticket.expected_prompt_tokens -= self.tree.kept_length(ticket.keys, len(request.tokens))
        self._seating.enter(ticket)
        return self._numbers

    def cancel(self, number: int) -> None:
        """Cancel a request at the next `decide`. Has no effect if the request has ended."""
        if (ticket := self._ticket(number)) is not None:
            ticket.is_cancelled = True

    def cancel_candidate(self, number: int, index: int) -> None:
        """Cancel one candidate at the next `decide`. The other candidates continue."""
        if (ticket := self._ticket(number)) is not None and 0 <= index < len(ticket.candidates):
            ticket.candidates[index].is_cancelled = True

    def decide(self, now_s: float) -> Plan:
        """Plan the next step and return it."""
        events: list[SchedulerEvent] = []
        limits = self.limits
        self._now_s = now_s
        if self.saving.has_pending:
            self._save()
        self._drop(now_s, events)
        self._seating.fill(now_s)
        self._serve_from_memo(events)
        turn, prompt_costs = None, None
        if not limits.mixes_steps:
            turn = Turn.OUTPUTS if self._last_turn is Turn.PROMPTS else Turn.PROMPTS
            prompt_costs = self._prompt_costs
        budget = StepBudget(limits.step_tokens, limits.prompt_step_tokens, turn)
        work = fill_batch(self._seating.seated(), budget, self.costs, prompt_costs)
        if not limits.mixes_steps:
            self._last_turn = turn_of(work)
        if self.draft_model is not None:
            remaining_tokens = max(0, limits.step_tokens - sum(item.tokens for item in work))
            self.draft_model.plan(work, self._seating.branches, remaining_tokens, self.costs)
        work = self._make_room_for(work, events)
        slices = tuple(map(Work.plan_slice, work))
        operations = tuple(self.tree.operations)
        self.tree.operations.clear()
        return Plan(operations, slices, tuple(events), tuple(work))

    def apply(self, plan: Plan, logits: Logits, cost: float = 0.0) -> list[SchedulerEvent]:
        """Apply the result of a plan, and return the events of its branches.

        Args:
            plan: The plan that the engine computed.
            logits: The rows for the slices of the plan, in order, with shape (rows, vocabulary).
            cost: The duration of the step in seconds, or 0 if it is unknown.
        """
        events: list[SchedulerEvent] = []
        self._steps += 1
        self._learn_cost(plan, cost)
        # All computed tokens are entered first, because a branch that continues may share the tokens of another branch.
        for item in plan.work:
            branch, ticket, tokens = item.branch, item.branch.ticket, item.size + len(item.draft)
            self.tree.append(item.slice.sequence_id, item.keys)
            branch.computed += item.size
            branch.last_served = self._steps
            ticket.rows += tokens
            self.rows_total += tokens
            if not ticket.is_prompted:
                ticket.prompt_tokens_computed += item.size
        gained = first_row = 0
        for item in plan.work:
            branch, row_count = item.branch, item.slice.logit_rows
            rows = logits[first_row : first_row + row_count]
            first_row += row_count
            # If another branch has just failed the request of this branch, this branch no longer has a sequence.
            if not row_count or branch.sequence_id is None:
                continue
            if not branch.ticket.is_prompted:
                request = branch.ticket.request
                self._cached_prompts.add(request.prefixes, branch.keys[: len(request.tokens)])
            if branch.is_likely_to_recur:
                self._memo.keep(branch.keys, rows[0])
            accepted = self._advance(branch, item.draft, rows, events)
            if item.draft:
                gained += self._judge(item, accepted)
        if self.draft_model is not None:
            self.draft_model.settle(self.costs, cost, gained)
        return events

    def refuse(self) -> list[SchedulerEvent]:
        """Handle a plan that did not fit into the cache. No part of the plan was computed.

        Preempts the last branch. If only one branch has a seat, evicts idle tokens, or fails the request if that is
        impossible.
        """
        events: list[SchedulerEvent] = []
        seated = self._seating.seated()
        last = self._seating.last_of(seated)
        if len(seated) > 1:
            self._seating.preempt(last)
        elif not self.tree.make_room(tokens=self.tree.free_tokens + 1):
            reason = "the KV cache has no room for this request alone"
            self._advancing.fail(last.ticket, FailureCause.ENGINE, reason, events)
        return events

    def fail(self, plan: Plan | None, reason: str, cause: FailureCause = FailureCause.ENGINE) -> list[SchedulerEvent]:
        """Fail the requests of a plan, or all requests if `plan` is None."""
        tickets = self._seating.tickets()
        if plan is not None:
            tickets = list({item.branch.ticket.number: item.branch.ticket for item in plan.work}.values())
        events: list[SchedulerEvent] = []
        for ticket in tickets:
            self._advancing.fail(ticket, cause, reason, events)
        return events

    def compute_again(self, plan: Plan) -> list[SchedulerEvent]:
        """Clear all cached tokens, because an operation of a plan failed.

        Running requests recompute their tokens.
        """
        # Some operations of the plan may already have been applied. Dropping a piece twice is harmless.
        for operation in plan.operations:
            if isinstance(operation, Drop):
                self.tree.operations.append(operation)
            elif isinstance(operation, Save):
                self.saving.forget(operation.name)
        for branch in self._seating.seated():
            self._seating.unseat(branch)
        self.tree.clear()
        self._cached_prompts.clear()
        return []

    def renew(self, tree: PrefixTree, limits: Limits, root: bytes = b"") -> None:
        """Continue with an empty cache, new limits, and blocks of another root.

        Call this only while no sequence is decoded.
        """
        tree.changes = self.tree.changes + 1
        self.tree = self._seating.tree = tree
        self.limits = limits
        self.costs = StepCosts()
        self._prompt_costs = StepCosts()
        self.saving.restart(root)
        self._memo.clear()
        self._cached_prompts.clear()

    def _learn_cost(self, plan: Plan, cost: float) -> None:
        costs = self.costs
        if not self.limits.mixes_steps and turn_of(plan.work) is Turn.PROMPTS:
            costs = self._prompt_costs
        parts, rows = [], 0
        for part in plan.slices:
            size = len(part.tokens)
            parts.append((part.position, size))
            rows += size
        costs.learn(rows, cost)
        self.costs.load.add(parts, self.tree.used_tokens, cost)

    def _judge(self, item: Work, accepted: int) -> int:
        """Learn from the draft of an item.

        Returns the number of accepted tokens if the draft model made the draft, or 0 otherwise.
        """
        branch, drafted = item.branch, len(item.draft)
        if self.draft_model is not None and item.is_guessed:
            self.guessed.add(drafted, accepted)
            self.draft_model.judge(branch, drafted, accepted)
            return accepted
        if branch.drafter is not None:
            branch.drafter.judge(drafted, accepted)
        if branch.ticket.request.may_draft:  # texts to score are not guesses
            self.looked_up.add(drafted, accepted)
        return 0

    def _ticket(self, number: int) -> Ticket | None:
        return next((ticket for ticket in self._seating.tickets() if ticket.number == number), None)

    def _drop(self, now_s: float, events: list[SchedulerEvent]) -> None:
        """End the cancelled and expired requests, and the cancelled candidates."""
        for ticket in self._seating.tickets():
            if ticket.is_cancelled:
                self._advancing.fail(ticket, FailureCause.CANCELLED, "", events)
            elif ticket.request.deadline.has_passed(now_s):
                self._advancing.fail(ticket, FailureCause.DEADLINE, "", events)
        for branch in tuple(self._seating.branches):
            for candidate in branch.candidates:
                if candidate.is_cancelled:
                    self._advancing.drop_cancelled(branch, events)
                    break

    def _make_room_for(self, work: list[Work], events: list[SchedulerEvent]) -> list[Work]:
        """Return work that fits into the cache: drops drafts, then preempts branches, starting with the last branch."""
        while work and not self.tree.make_room(tokens=_cells_of(work)):
            seated = self._seating.seated()
            if any(item.draft or item.guesses for item in work):
                for item in work:
                    item.draft, item.guesses = [], 0
            elif len(seated) > 1:
                last = self._seating.last_of(seated)
                self._seating.preempt(last)
                work = [item for item in work if item.branch is not last]
            else:
                work = self._shrink(work[0], events)
        return work

    def _shrink(self, item: Work, events: list[SchedulerEvent]) -> list[Work]:
        """Return the only item of work, cut to the number of free cells. Fails its request if no cell is free."""
        item.size = min(item.size, self.tree.free_tokens)
        if item.size > 0:
            return [item]
        self._advancing.fail(item.branch.ticket, FailureCause.ENGINE, "the KV cache is too small", events)
        return []

    def _serve_from_memo(self, events: list[SchedulerEvent]) -> None:
        """Advance branches with cached tokens and a next row in the memo, for as long as possible."""
        while ready := [branch for branch in self._seating.seated() if self._has_row(branch)]:
            for branch in ready:
                if branch.sequence_id is not None:
                    self._advance(branch, [], self._memo.row(branch.keys)[np.newaxis], events)

    def _advance(self, branch: Branch, draft: list[int], rows: Logits, events: list[SchedulerEvent]) -> int:
        """Continue a branch, and return the number of accepted tokens of its draft.

        The cached blocks of its prompt are offered for storing while its sequence still holds these blocks.
        """
        ticket, blocks = branch.ticket, branch.ticket.request.blocks
        if blocks.names and not ticket.is_prompted:
            cached = max(0, len(ticket.request.tokens) - ticket.prompt_tokens_computed)
            self.saving.reuse(blocks, branch.keys[:cached], cached, self._now_s)
            self._save()
        return self._advancing.advance(branch, draft, rows, events)

    def _save(self) -> None:
        """Plan to store pending blocks, at most `SAVES_PER_STEP` per step."""
        planned = sum(isinstance(operation, Save) for operation in self.tree.operations)
        self.tree.operations += self.saving.take(SAVES_PER_STEP - planned, self.tree.holder)

    def _has_row(self, branch: Branch) -> bool:
        if branch.pending > 1 or not branch.is_likely_to_recur or branch.keys not in self._memo:
            return False
        length = len(branch.tokens)
        if branch.pending and self.tree.shared_length(branch.keys, length) == length:
            self._seating.share_again(branch, length)
        return branch.pending == 0


def _cells_of(work: Sequence[Work]) -> int:
    """Return the number of cells that the work needs, including drafts and the tokens that may still be drafted."""
    cells = 0
    for item in work:
        cells += item.size + len(item.draft) + item.guesses
    return cells


class CachedPrompts:
    """The callers' keys of cached prompt prefixes, for the last `capacity` computed prompts.

    A prompt is recorded with its keys once it is computed. Each review looks up the cached part of a few prompts, in
    rotation. Reviews are small, because the engine waits a few microseconds for each lookup.
    """

    def __init__(self, capacity: int = MAX_PROMPTS) -> None:
        self.keys: set[int] = set()
        self._capacity = capacity
        self._prompts: OrderedDict[int, tuple[PromptPrefixes, array[int]]] = OrderedDict()
        self._uses: Counter[int] = Counter()

    def add(self, prefixes: PromptPrefixes, tokens: Iterable[int]) -> None:
        """Record a computed prompt. `tokens` are its keys in the cache."""
        if not prefixes.keys:
            return
        self._forget(prefixes.keys[-1])
        self._prompts[prefixes.keys[-1]] = (prefixes, array("q", tokens))
        self._uses.update(prefixes.keys)
        self.keys.update(prefixes.keys)
        if len(self._prompts) > self._capacity:
            self._forget(next(iter(self._prompts)))

    def review(self, tree: PrefixTree, count: int) -> None:
        """Look up the cached part of at most `count` prompts, starting with the longest unreviewed prompt."""
        for name in list(self._prompts)[:count]:
            self._prompts.move_to_end(name)
            prefixes, tokens = self._prompts[name]
            cached = tree.kept_length(tokens, len(tokens))
            blocks = cached * prefixes.prompt_bytes // (len(tokens) * prefixes.block_bytes)
            self.keys.update(prefixes.keys[:blocks])
            self.keys.difference_update(prefixes.keys[blocks:])

    def clear(self) -> None:
        """Clear all prompts, because the cache is empty."""
        self.keys.clear()
        self._prompts.clear()
        self._uses.clear()

    def _forget(self, name: int) -> None:
        if name in self._prompts:
            prefixes, _ = self._prompts.pop(name)
            self._uses.subtract(prefixes.keys)
            for key in prefixes.keys:
                if not self._uses[key]:
                    del self._uses[key]
                    self.keys.discard(key)
