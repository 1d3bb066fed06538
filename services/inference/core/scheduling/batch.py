"""Fills one batch: which branches are served, with how many of their pending tokens, and with which drafts.

First come the branches with little to do, the longest unserved first, so that all that decode go on together; then
prompts, of which the oldest gets at least half of what is left, so that it is not starved, and the shortest the rest,
so that short ones need not wait for long ones; then drafts. A prompt whose next tokens another one computes in the
same batch is deferred, and shares them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.inference.core.scheduling.branches import Branch
from services.inference.core.scheduling.drafting import StepCosts

_SHORT = 16  # pending tokens up to which a branch is served with those that decode


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens to append to a sequence at `position`, its length; logits are wanted for the last `logit_rows` of them."""

    sequence_id: int
    tokens: list[int]
    position: int
    logit_rows: int


@dataclass(slots=True)
class Work:
    """What a batch has of one branch: its next `size` pending tokens and, after all of them, a draft."""

    branch: Branch
    size: int
    draft: list[int]

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return self.size + len(self.draft)

    def slice(self) -> Slice:
        """Return what the engine is to compute."""
        branch = self.branch
        assert branch.sequence_id is not None  # noqa: S101 - only seated branches get work
        end = branch.computed + self.size
        rows = 1 + len(self.draft) if end == len(branch.tokens) else 0
        return Slice(branch.sequence_id, branch.tokens[branch.computed : end] + self.draft, branch.computed, rows)


def fill_batch(seated: Sequence[Branch], step_tokens: int, costs: StepCosts) -> list[Work]:
    """Return the work of one step, at most `step_tokens` tokens. Prompts that are to wait are marked as deferred."""
    prompts = sorted((b for b in seated if b.pending > _SHORT), key=lambda b: (b.pending, b.ticket.number))
    short = sorted((b for b in seated if b.pending <= _SHORT), key=lambda b: (b.last_served, b.ticket.number))
    work: list[Work] = []
    left = step_tokens
    reserve = min(max(1, left // 4), left - 1) if prompts else 0
    for branch in short:
        left -= _add(work, branch, left - reserve)
    if prompts:
        oldest = min(prompts, key=lambda branch: branch.ticket.number)
        left -= _add(work, oldest, left if len(prompts) == 1 else max(1, left // 2))
        for branch in prompts:
            if branch is not oldest:
                left -= _add(work, branch, left)
    for item in work:
        more = min(left, item.branch.pending - item.size)
        item.size += more
        left -= more
    _add_drafts(work, left, costs)
    return work


def _add(work: list[Work], branch: Branch, most: int) -> int:
    """Add work for a branch and return its tokens, 0 when there is no budget or another one computes the same."""
    size = min(branch.pending, most)
    if size <= 0:
        return 0
    if not branch.ticket.is_prompted and any(_computes_next(item, branch) for item in work):
        branch.is_deferred = True
        return 0
    work.append(Work(branch, size, []))
    return size


def _add_drafts(work: Sequence[Work], left: int, costs: StepCosts) -> None:
    rows = sum(item.size for item in work)
    for item in work:
        branch = item.branch
        if branch.drafter is None or item.size < branch.pending or left <= 0:
            continue
        limit = min(left, branch.ticket.request.max_tokens - branch.output.output_tokens - 1)
        if limit > 0:
            item.draft = branch.drafter.draft(branch.tokens, rows, limit, costs)
            rows += len(item.draft)
            left -= len(item.draft)


def _computes_next(item: Work, branch: Branch) -> bool:
    """Tell whether work of another prompt computes the token that a branch needs next, in the same place."""
    other = item.branch
    length = branch.computed + 1
    return (
        not other.ticket.is_prompted
        and other.computed <= branch.computed < other.computed + item.size
        and other.tokens[:length] == branch.tokens[:length]
    )
