"""Fills one batch: chooses the branches to serve, the number of pending tokens of each, and the drafts.

Theory of operation. Each tenant gets its share of the step's tokens. The part of a share that a tenant does not need
goes to the other tenants. Among the branches of a tenant, those with few pending tokens come first, and of these the
branch that has been unserved the longest comes first. All decoding branches thus continue together. Prompts follow, in
chunks. The oldest prompt gets at least half of the rest, so that it is not starved. The shortest prompts get the other
half, so that they need not wait for long prompts. Drafts come last. A prompt is deferred while another prompt in the
batch computes the same next tokens, and shares these tokens afterwards. If an engine computes outputs and prompts
faster separately, they take turns.

Invariants:
    1. The work has at most as many tokens as the budget allows: `step`, or `prompt` if the step computes no output.
    2. Every tenant with pending tokens gets a token, if there are at most as many tenants as tokens.
    3. If there are prompts, decoding branches get at most three quarters of a tenant's share, and at least one token.

Sources: prompts computed in chunks together with decoding, A. Agrawal et al., "Taming Throughput-Latency Tradeoff in
LLM Inference with Sarathi-Serve", OSDI 2024.
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

_SHORT = 16  # a branch with at most this many pending tokens is served with the decoding branches
_LONGEST_PROMPT_STEP_S = 0.3
_LONGEST_OUTPUT_WAIT_S = 0.2
_WORTH_WAITING = 16  # waiting to share fewer tokens takes longer than recomputing them


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens to append to a sequence of length `position`; the engine returns logits for the last `logit_rows` tokens.

    If `embeddings` of an image are set, with one row per token, they replace the tokens as the model's input.
    """

    sequence_id: int
    tokens: list[int]
    position: int
    logit_rows: int
    embeddings: Embeddings | None = None


@dataclass(slots=True)
class Work:
    """The part of a batch for one branch: its next `size` pending tokens, and a draft if no more tokens are pending.

    Until the draft model has made its draft, `guesses` is the number of tokens that it may draft.
    """

    branch: Branch
    size: int
    draft: list[int]
    guesses: int = 0
    is_guessed: bool = False
    slice: Slice = field(init=False)

    @property
    def tokens(self) -> int:
        """The number of tokens in the batch."""
        return self.size + len(self.draft)

    @property
    def is_whole(self) -> bool:
        """Whether the work includes all pending tokens, so that the branch continues after the step."""
        return self.size == self.branch.pending

    @property
    def keys(self) -> list[int]:
        """The cache keys of these tokens, which are valid until the branch continues."""
        computed = self.slice.position
        keys = self.branch.keys[computed : computed + self.size]
        if self.draft:
            keys += cache_keys(self.draft, self.branch.ticket.owner)
        return keys

    def plan_slice(self) -> Slice:
        """Set and return the slice for the engine, once the plan is final."""
        branch = self.branch
        assert branch.sequence_id is not None  # noqa: S101 - only seated branches get work
        start = branch.computed
        end = start + self.size
        rows = 0
        if end == len(branch.tokens):
            rows = 1 + len(self.draft)
        embeddings = None
        if branch.ticket.request.images:
            embeddings = embeddings_at(branch.ticket.request.images, start, end)
        self.slice = Slice(branch.sequence_id, branch.tokens[start:end] + self.draft, start, rows, embeddings)
        return self.slice


class Turn(Enum):
    """The kind of work that a step computes if outputs and prompts take turns."""

    OUTPUTS = auto()
    PROMPTS = auto()


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The maximum number of tokens in a step: `step`, or a larger `prompt` if the step computes no output.

    Without a `turn`, outputs and prompts are computed together.
    """

    step: int
    prompt: int = 0
    turn: Turn | None = None


def turn_of(work: Sequence[Work]) -> Turn:
    """Return PROMPTS if a step computes any prompt, or OUTPUTS otherwise."""
    if any(_is_prompt(item.branch) for item in work):
        return Turn.PROMPTS
    return Turn.OUTPUTS


def fill_batch(
    seated: Sequence[Branch], budget: StepBudget, costs: StepCosts, prompt_costs: StepCosts | None = None
) -> list[Work]:
    """Return the work of one step, within its budget. Marks the deferred prompts.

    `prompt_costs` are the costs of steps that contain only prompts, if they differ from the costs of other steps with
    as many tokens.
    """
    longest_s = _LONGEST_PROMPT_STEP_S
    if budget.turn is not None:
        seated, longest_s = _branches_of(budget.turn, seated)
    limit = _token_limit(seated, budget, prompt_costs or costs, longest_s)
    remaining_tokens = limit
    work: list[Work] = []
    tenants = _by_tenant(seated, limit)
    weights = [branches[0].ticket.weight for branches in tenants]
    for index, branches in enumerate(tenants):
        weighted = math.ceil(remaining_tokens * weights[index] / sum(weights[index:]))
        after = len(tenants) - index - 1  # each later tenant also gets a token if there are enough tokens
        share = min(remaining_tokens, max(1, min(weighted, remaining_tokens - after)))
        remaining_tokens -= share - _add_tenant(work, branches, share)
    for item in work:
        more = min(remaining_tokens, item.branch.pending_run - item.size)
        item.size += more
        remaining_tokens -= more
    _add_drafts(work, remaining_tokens - (limit - budget.step), costs)
    return work


def _branches_of(turn: Turn, seated: Sequence[Branch]) -> tuple[Sequence[Branch], float]:
    """Return the branches of a turn, and the maximum duration in seconds of a step that contains only prompts."""
    outputs = [branch for branch in seated if branch.pending and not _is_prompt(branch)]
    prompts = [branch for branch in seated if _is_prompt(branch)]
    if not (outputs and prompts):
        return seated, _LONGEST_PROMPT_STEP_S
    return prompts if turn is Turn.PROMPTS else outputs, _LONGEST_OUTPUT_WAIT_S


def _is_prompt(branch: Branch) -> bool:
    return branch.pending > _SHORT


def _token_limit(seated: Sequence[Branch], budget: StepBudget, costs: StepCosts, longest_s: float) -> int:
    """Return the maximum number of tokens in a step.

    Large steps compute prompts faster, but cancellations and new requests must wait for the end of the step.
    """
    for branch in seated:
        if branch.ticket.is_prompted and not _is_prompt(branch):
            return budget.step
    sizes = _prompt_sizes(budget)
    limit = next((size for size in sizes if 0 < costs.expect(size) <= longest_s), sizes[-1])
    rest = sum(branch.pending for branch in seated) - limit
    # A separate step for so few tokens would take longer than adding them to this step.
    if budget.turn is not None and 0 < rest < budget.step and limit + rest <= budget.prompt:
        return limit + rest
    return limit


def _prompt_sizes(budget: StepBudget) -> list[int]:
    """Return the possible sizes of a step of prompts, in descending order."""
    sizes = [max(budget.step, budget.prompt)]
    while sizes[-1] // 2 >= budget.step:
        sizes.append(sizes[-1] // 2)
    # If steps take turns, a step that is larger than steps with outputs is faster even for fewer tokens.
    if budget.turn is None and sizes[-1] > budget.step:
        sizes.append(budget.step)
    return sizes


def _by_tenant(seated: Sequence[Branch], step_tokens: int) -> list[list[Branch]]:
    """Return the branches of each tenant, in the order in which tenants get their shares.

    The tenant that needs the least of its share comes first, so that the other tenants get the rest of the share. If
    there are more tenants than tokens, the tenant that has been unserved the longest comes first.
    """
    by_owner: dict[int, list[Branch]] = {}
    for branch in seated:
        by_owner.setdefault(branch.ticket.owner, []).append(branch)
    tenants = list(by_owner.values())
    if len(tenants) <= 1:
        return tenants
    if len(tenants) > step_tokens:
        return sorted(tenants, key=lambda branches: max(branch.last_served for branch in branches))
    return sorted(tenants, key=lambda own: sum(branch.pending for branch in own) / own[0].ticket.weight)


def _add_tenant(work: list[Work], branches: Sequence[Branch], left: int) -> int:
    """Add the work of one tenant, at most `left` tokens. Returns the number of tokens that are still left."""
    prompts: list[Branch] = []
    decoding: list[Branch] = []
    for branch in branches:
        if _is_prompt(branch):
            prompts.append(branch)
        else:
            decoding.append(branch)
    reserve = 0
    if prompts:
        prompts.sort(key=lambda branch: (branch.pending, branch.ticket.number))
        reserve = max(0, min(max(1, left // 4), left - 1))
    if len(decoding) > 1:
        decoding.sort(key=lambda branch: (branch.last_served, branch.ticket.number))
    for branch in decoding:
        left -= _add(work, branch, left - reserve)
    if prompts and left > 0:
        left = _add_prompts(work, prompts, left)
    return left


def _add_prompts(work: list[Work], prompts: Sequence[Branch], left: int) -> int:
    """Add prompts, shortest first, but reserve half for the oldest. Returns the number of tokens that are left."""
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
    """Add work for a branch and return its number of tokens.

    Returns 0 if no budget is left, or if another prompt computes the same tokens.
    """
    size = min(branch.pending_run, limit)
    if size <= 0:
        return 0
    if not branch.ticket.is_prompted and any(_computes_next(item, branch) for item in work):
        branch.is_deferred = True
        return 0
    work.append(Work(branch, size, []))
    return size


def _add_drafts(work: Sequence[Work], left: int, costs: StepCosts) -> None:
    """Add drafts, at most `left` tokens in total, to the branches that get all their pending tokens."""
    rows = 0
    for item in work:
        rows += item.size
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
    """Return whether the work of another prompt computes the next token of a branch, after the same tokens.

    A request that keeps only a part of its tokens has a short suffix that it does not share, so it waits only for
    longer runs.
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
