"""Fills one batch: which branches are served, with how many of their pending tokens, and with which drafts.

Each tenant gets its share of the tokens, and what it does not need goes to the others. Of its branches, those with few
pending tokens come first, the longest unserved first, so that all decoding branches continue together. Then come
prompts: the oldest gets at least half of the rest, so that it is not starved, and the shortest ones get the other half,
so that they need not wait for long ones. Drafts come last. A prompt is deferred while another one computes its next
tokens in the same batch; it shares them afterwards. An engine that computes outputs and prompts faster apart gets them
in turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from services.inference.core.decoding.images import Embeddings, embeddings_at
from services.inference.core.scheduling.branches import Branch
from services.inference.core.scheduling.cache_owners import cache_keys
from services.inference.core.scheduling.drafting import StepCosts

_SHORT = 16  # pending tokens up to which a branch is served with the decoding branches
_LONGEST_PROMPT_STEP_S = 0.3
_LONGEST_OUTPUT_WAIT_S = 0.2
_WORTH_WAITING = 16  # tokens that another prompt computes; fewer are computed again sooner than they are shared


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens to append to a sequence of length `position`; the last `logit_rows` of them want logits.

    Where there are `embeddings` of an image, a row for each token, the model reads them in place of the tokens.
    """

    sequence_id: int
    tokens: list[int]
    position: int
    logit_rows: int
    embeddings: Embeddings | None = None


@dataclass(slots=True)
class Work:
    """The part of a batch for one branch: its next `size` pending tokens and, if these are all, a draft.

    Before the draft model has made its draft, `guesses` is how many tokens it may have.
    """

    branch: Branch
    size: int
    draft: list[int]
    guesses: int = 0
    is_guessed: bool = False
    slice: Slice = field(init=False)

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return self.size + len(self.draft)

    @property
    def is_whole(self) -> bool:
        """Whether these are all pending tokens, so that the branch continues after the step."""
        return self.size == self.branch.pending

    @property
    def has_draft(self) -> bool:
        """Whether it has a draft, or may get one."""
        return bool(self.draft) or self.guesses > 0

    def drop_draft(self) -> None:
        """Do without a draft."""
        self.draft, self.guesses = [], 0

    @property
    def keys(self) -> list[int]:
        """The keys of these tokens in the cache, until the branch continues."""
        computed, owner = self.slice.position, self.branch.ticket.owner
        return self.branch.keys[computed : computed + self.size] + cache_keys(self.draft, owner)

    def plan_slice(self) -> Slice:
        """Fix and return the slice for the engine, once the plan is made."""
        branch = self.branch
        assert branch.sequence_id is not None  # noqa: S101 - only seated branches get work
        end = branch.computed + self.size
        rows = 0
        if end == len(branch.tokens):
            rows = 1 + len(self.draft)
        tokens = branch.tokens[branch.computed : end] + self.draft
        embeddings = embeddings_at(branch.ticket.request.images, branch.computed, end)
        self.slice = Slice(branch.sequence_id, tokens, branch.computed, rows, embeddings)
        return self.slice


class Turn(Enum):
    """What a step computes, if there is both."""

    OUTPUTS = auto()
    PROMPTS = auto()


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Tokens of one step: `step`, or up to `prompt`, if that is more and the step computes no output.

    Without a `turn`, outputs and prompts are computed together.
    """

    step: int
    prompt: int = 0
    turn: Turn | None = None


def turn_of(work: Sequence[Work]) -> Turn:
    """Tell whether a step computes prompts, with outputs or without."""
    if any(_is_prompt(item.branch) for item in work):
        return Turn.PROMPTS
    return Turn.OUTPUTS


def fill_batch(
    seated: Sequence[Branch], budget: StepBudget, costs: StepCosts, prompt_costs: StepCosts | None = None
) -> list[Work]:
    """Return the work of one step, within its budget; marks the deferred prompts.

    `prompt_costs` are the costs of steps of prompts alone, where they differ from others of as many tokens.
    """
    work: list[Work] = []
    seated, longest_s = _whose_turn(seated, budget.turn)
    most = _most_tokens(seated, budget, prompt_costs or costs, longest_s)
    left = most
    tenants = _by_tenant(seated, most)
    weights = [branches[0].ticket.weight for branches in tenants]
    for index, branches in enumerate(tenants):
        weighted = math.ceil(left * weights[index] / sum(weights[index:]))
        after = len(tenants) - index - 1  # each of them gets a token too, if there are so many
        share = min(left, max(1, min(weighted, left - after)))
        left -= share - _add_all(work, branches, share)
    for item in work:
        more = min(left, item.branch.pending_run - item.size)
        item.size += more
        left -= more
    _add_drafts(work, left - (most - budget.step), costs)
    return work


def _whose_turn(seated: Sequence[Branch], turn: Turn | None) -> tuple[Sequence[Branch], float]:
    """Return the branches of a step, and how long one with prompts alone may take."""
    if turn is not None:
        outputs = [branch for branch in seated if branch.pending and not _is_prompt(branch)]
        prompts = [branch for branch in seated if _is_prompt(branch)]
        if outputs and prompts:
            return prompts if turn is Turn.PROMPTS else outputs, _LONGEST_OUTPUT_WAIT_S
    return seated, _LONGEST_PROMPT_STEP_S


def _is_prompt(branch: Branch) -> bool:
    return branch.pending > _SHORT


def _most_tokens(seated: Sequence[Branch], budget: StepBudget, costs: StepCosts, longest_s: float) -> int:
    """Return the tokens of a step. Large ones compute prompts faster, but a cancel and a new request wait for them."""
    if any(branch.ticket.is_prompted and not _is_prompt(branch) for branch in seated):
        return budget.step
    sizes = _prompt_sizes(budget)
    most = next((size for size in sizes if 0 < costs.expect(size) <= longest_s), sizes[-1])
    rest = sum(branch.pending for branch in seated) - most
    # A step of fewer tokens would take longer than they take in this one.
    if budget.turn is not None and 0 < rest < budget.step and most + rest <= budget.prompt:
        return most + rest
    return most


def _prompt_sizes(budget: StepBudget) -> list[int]:
    """Return the sizes that a step of prompts may have, the largest first."""
    sizes = [max(budget.step, budget.prompt)]
    while sizes[-1] // 2 >= budget.step:
        sizes.append(sizes[-1] // 2)
    # Where steps take turns, one that is larger than those with outputs is faster even for fewer tokens.
    if budget.turn is None and sizes[-1] > budget.step:
        sizes.append(budget.step)
    return sizes


def _by_tenant(seated: Sequence[Branch], step_tokens: int) -> list[list[Branch]]:
    """Return the branches of each tenant.

    The tenant that needs least of its share comes first, so that the others get what it leaves; the one unserved for
    longest, when there are more tenants than tokens.
    """
    by_owner: dict[int, list[Branch]] = {}
    for branch in seated:
        by_owner.setdefault(branch.ticket.owner, []).append(branch)
    tenants = list(by_owner.values())
    if len(tenants) > step_tokens:
        return sorted(tenants, key=lambda branches: max(branch.last_served for branch in branches))
    return sorted(tenants, key=lambda own: sum(branch.pending for branch in own) / own[0].ticket.weight)


def _add_all(work: list[Work], branches: Sequence[Branch], left: int) -> int:
    """Add the work of one tenant, at most `left` tokens, and return the tokens that are left."""
    if left <= 0:
        return left
    prompts = sorted((b for b in branches if _is_prompt(b)), key=lambda b: (b.pending, b.ticket.number))
    short = sorted((b for b in branches if not _is_prompt(b)), key=lambda b: (b.last_served, b.ticket.number))
    reserve = 0
    if prompts:
        reserve = min(max(1, left // 4), left - 1)
    for branch in short:
        left -= _add(work, branch, left - reserve)
    return _add_prompts(work, prompts, left)


def _add_prompts(work: list[Work], prompts: Sequence[Branch], left: int) -> int:
    """Add the prompts, shortest first but for the oldest, and return the tokens that are left."""
    if not prompts or left <= 0:
        return left
    oldest = min(prompts, key=lambda branch: branch.ticket.number)
    share = left
    if len(prompts) > 1:
        share = max(1, left // 2)
    left -= _add(work, oldest, share)
    for branch in prompts:
        if branch is not oldest:
            left -= _add(work, branch, left)
    return left


def _add(work: list[Work], branch: Branch, limit: int) -> int:
    """Add work for a branch and return its tokens; 0 without budget, or if another branch computes the same tokens."""
    size = min(branch.pending_run, limit)
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
    """Tell whether work of another prompt computes the next token of a branch, after the same tokens.

    A branch whose end nobody else needs has few tokens in common with others, and waits only for more than a few.
    """
    other = item.branch
    needed = 1
    if branch.ticket.request.kept_tokens is not None:
        needed = _WORTH_WAITING
    length = branch.computed + needed
    return (
        not other.ticket.is_prompted
        and other.computed <= branch.computed
        and length <= other.computed + item.size
        and other.keys[:length] == branch.keys[:length]
    )
