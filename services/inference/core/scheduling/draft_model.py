"""Plans the batches of a draft model, and the sequences in its cache, which follow the main model's branches.

Theory of operation. A draft model is a smaller model with the same tokens, in a separate engine. If drafts are
worthwhile for a branch, the branch has a follower. A follower is a sequence in that engine's cache, which computes the
branch's tokens and then guesses the next tokens. In each step of the scheduler, `plan` grants drafts and makes room.
The engine's loop then calls `next_slices` for one batch per position of the drafts, over all branches, until the batch
is empty. It passes the best token of each row to `take`. The first batch also computes the missing tokens of followers,
at most a step's tokens. `finish` puts the drafts into the plan's work. The cache is a `PrefixTree` with the same keys
as the model's tree, so tenants share no more here than in the model's tree.

Invariants:
    1. A batch has at most `step_tokens` tokens, and its cells fit into the cache.
    2. The tokens of a follower are the tokens of its branch, followed by its last guesses.
    3. Tokens outside the draft model's vocabulary are neither computed nor drafted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.inference.core.scheduling.batch import Slice, Work
from services.inference.core.scheduling.branches import Branch
from services.inference.core.scheduling.cache_owners import cache_keys
from services.inference.core.scheduling.draft_worth import DraftPolicy, Standing, StepShape
from services.inference.core.scheduling.drafting import StepCosts
from services.inference.core.scheduling.operations import Operation
from services.inference.core.scheduling.parked_prefixes import common_length
from services.inference.core.scheduling.prefix_tree import PrefixTree

# With at most this many pending tokens, a follower computes them and guesses in the same batch.
READY_TOKENS = 16


class Follower:
    """A branch's sequence in the draft model's cache. `sequence_id` is None until following is worthwhile.

    Attributes:
        computed: The number of the branch's tokens in the cache.
        guessed: The computed guesses after these tokens.
    """

    __slots__ = ("branch", "computed", "guessed", "is_followed", "sequence_id", "standing")

    def __init__(self, branch: Branch, standing: Standing) -> None:
        self.branch = branch
        self.standing = standing
        self.sequence_id: int | None = None
        self.computed = 0
        self.guessed: list[int] = []
        self.is_followed = False

    @property
    def is_ready(self) -> bool:
        """Whether the follower can guess in this step."""
        return self.is_followed and self.standing.pending <= READY_TOKENS and self.standing.limit > 0


@dataclass(slots=True)
class _Guess:
    """A draft that grows by one token per batch."""

    item: Work
    follower: Follower
    depth: int
    tokens: list[int] = field(default_factory=list)

    def next_slice(self) -> Slice:
        """Return the slice that computes the last guess, so that the next token can be guessed."""
        follower = self.follower
        return Slice(_id_of(follower), self.tokens[-1:], follower.computed + len(follower.guessed), 1)


class DraftModel:
    """The followers of all branches, and the drafts of the current step.

    Args:
        tree: The tokens in the draft model's cache.
        policy: Chooses the drafts.
        step_tokens: The maximum number of tokens in one batch of the draft model.
        vocabulary_size: Token ids below this number mean the same in both models.
    """

    def __init__(self, tree: PrefixTree, policy: DraftPolicy, *, step_tokens: int, vocabulary_size: int) -> None:
        self.policy = policy
        self.is_off = False
        self._tree = tree
        self._step_tokens = step_tokens
        self._vocabulary_size = vocabulary_size
        self._followers: dict[Branch, Follower] = {}
        self._guesses: list[_Guess] = []
        self._lagging: list[tuple[Follower, int]] = []
        self._due: list[_Guess] = []
        self._shape = StepShape(1, 1, 0)
        self._spent_s = 0.0
        self._has_begun = False

    def plan(self, work: Sequence[Work], branches: Sequence[Branch], left: int, costs: StepCosts) -> None:
        """Choose the work that gets drafts, at most `left` tokens in total, and set the `guesses` of that work."""
        self._begin(work, left)
        self._forget(branches)
        if self.is_off or left <= 0:
            return
        decoding = [item for item in work if self._may_draft(item)]
        followers = [self._follower(item.branch) for item in decoding]
        for follower in followers:
            self._consider(follower, costs)
        self._grant([item for item in decoding if self._followers[item.branch].is_ready], costs)
        self._follow(followers)

    def take_operations(self) -> tuple[Operation, ...]:
        """Remove and return the pending operations on the draft model's cache, which must precede the next batch."""
        operations = tuple(self._tree.operations)
        self._tree.operations.clear()
        return operations

    def next_slices(self) -> tuple[Slice, ...]:
        """Return the next batch, which is empty once all drafts are made.

        Pass the result of the batch to `take` before the next call.
        """
        if not self._has_begun:
            self._has_begun = True
            # The scheduler may have taken back the room for a draft in the main model's cache.
            self._guesses = [guess for guess in self._guesses if guess.item.guesses]
            self._due = self._guesses
            first = [self._slice(guess.follower, guess.follower.standing.pending, 1) for guess in self._due]
            return (*first, *(self._slice(follower, size, 0) for follower, size in self._lagging))
        self._lagging = []
        self._due = [guess for guess in self._due if len(guess.tokens) < guess.depth]
        return tuple(guess.next_slice() for guess in self._due)

    def take(self, best: Sequence[int], cost_s: float) -> None:
        """Add the most probable token of each requested row of the last batch, and the batch's cost."""
        rows = sum(size for _, size in self._lagging)
        for follower, size in self._lagging:
            self._compute(follower, size)
        for guess, token in zip(self._due, best, strict=True):
            if guess.tokens:
                self._compute_guess(guess.follower, guess.tokens[-1])
                rows += 1
            else:
                rows += guess.follower.standing.pending
                self._compute(guess.follower, guess.follower.standing.pending)
            guess.tokens.append(token)
        self.policy.learn_draft(rows, cost_s)
        self._spent_s += cost_s

    def finish(self) -> None:
        """Put each finished draft into the work for which it was made."""
        for guess in self._guesses:
            guess.item.draft = guess.tokens
            guess.item.guesses = 0
            guess.item.is_guessed = True

    def switch_off(self) -> None:
        """Stop drafting, and drop the drafts of this step."""
        self.is_off = True
        for guess in self._guesses:
            guess.item.guesses = 0
        self._guesses, self._lagging, self._due = [], [], []
        self._followers.clear()

    def judge(self, branch: Branch, drafted: int, accepted: int) -> None:
        """Learn from the draft of a branch, whose first `accepted` tokens the sampler picked."""
        if (follower := self._followers.get(branch)) is not None:
            self.policy.learn(follower.standing, drafted, accepted)

    def settle(self, costs: StepCosts, cost_s: float, gained: int) -> None:
        """Learn the cost of the step with its drafts, of which the sampler picked `gained` tokens."""
        self.policy.settle(self._shape, costs, cost_s=cost_s, draft_s=self._spent_s, gained=gained)

    def renew(self, tree: PrefixTree, step_tokens: int) -> None:
        """Restart with an empty cache and another step size."""
        self._tree = tree
        self._step_tokens = step_tokens
        self._followers.clear()
        self.policy.renew()

    def _begin(self, work: Sequence[Work], left: int) -> None:
        self._guesses, self._lagging, self._due = [], [], []
        self._has_begun = False
        self._spent_s = 0.0
        served = sum(item.is_whole for item in work)
        self._shape = StepShape(sum(item.tokens for item in work), max(1, served), left)

    def _may_draft(self, item: Work) -> bool:
        """Return whether a branch decodes and has no draft yet.

        Several candidates would split, so they get no drafts.
        """
        branch = item.branch
        ticket = branch.ticket
        is_decoding = ticket.is_prompted and item.is_whole and len(branch.candidates) == 1
        return is_decoding and ticket.request.may_draft and not item.draft

    def _follower(self, branch: Branch) -> Follower:
        """Return the follower of a branch, truncated to the tokens that it has in common with the branch."""
        follower = self._followers.get(branch)
        if follower is None:
            follower = self._followers[branch] = Follower(branch, Standing(self.policy.first_acceptance))
            follower.computed = self._tree.kept_length(branch.keys, len(branch.keys) - 1)
        if follower.sequence_id is not None:
            matched = common_length(follower.guessed, branch.tokens[follower.computed :], len(follower.guessed))
            # The next guess needs the row of the last token, so this token is always computed.
            follower.computed = min(follower.computed + matched, len(branch.tokens) - 1)
            follower.guessed = []
            self._tree.truncate(follower.sequence_id, follower.computed)
        self._stand(follower)
        return follower

    def _stand(self, follower: Follower) -> None:
        branch, standing = follower.branch, follower.standing
        standing.pending = len(branch.tokens) - follower.computed
        standing.remaining = branch.ticket.request.max_tokens - branch.output.output_tokens - 1
        standing.limit = min(self._shape.left, standing.remaining)

    def _consider(self, follower: Follower, costs: StepCosts) -> None:
        """Decide whether to follow a branch, and open the follower's sequence."""
        standing = follower.standing
        if follower.sequence_id is None or standing.pending > READY_TOKENS:
            follower.is_followed = standing.trial_rounds > 0 or self.policy.pays_to_follow(standing, self._shape, costs)
        if not self._has_trial and self.policy.try_out(standing, self._shape, costs):
            follower.is_followed = True
        if follower.is_followed:
            follower.is_followed = self._open(follower)

    @property
    def _has_trial(self) -> bool:
        return any(follower.standing.trial_rounds for follower in self._followers.values())

    def _open(self, follower: Follower) -> bool:
        """Make sure that a follower has a sequence.

        Returns False if no id is free or a token is outside the vocabulary.
        """
        branch = follower.branch
        if follower.sequence_id is None:
            follower.sequence_id = self._tree.share(branch.keys, len(branch.keys) - 1)
            if follower.sequence_id is None:
                return False
            follower.computed = self._tree.length(follower.sequence_id)
            self._stand(follower)
        return all(0 <= token < self._vocabulary_size for token in branch.tokens[follower.computed :])

    def _grant(self, ready: Sequence[Work], costs: StepCosts) -> None:
        """Grant drafts to ready followers as far as the batches and the cache have room."""
        followers = [self._followers[item.branch] for item in ready]
        depths = self.policy.depths([follower.standing for follower in followers], self._shape, costs)
        for item, follower, depth in zip(ready, followers, depths, strict=True):
            if depth > 0 and self._has_room(follower.standing.pending, depth):
                item.guesses = depth
                self._guesses.append(_Guess(item, follower, depth))

    def _follow(self, followers: Iterable[Follower]) -> None:
        """Compute tokens for followers that lag behind as far as the batch and the cache have room."""
        for follower in followers:
            size = min(follower.standing.pending - 1, self._step_tokens - self._first_tokens)
            if follower.is_followed and follower.standing.pending > READY_TOKENS and size > 0 and self._has_room(size):
                self._lagging.append((follower, size))

    @property
    def _first_tokens(self) -> int:
        """The number of tokens in the first batch so far."""
        return sum(guess.follower.standing.pending for guess in self._guesses) + sum(size for _, size in self._lagging)

    def _has_room(self, tokens: int, depth: int = 0) -> bool:
        """Make room in the cache for more tokens of the first batch and for a draft.

        Returns False if there is too little room.
        """
        first = self._first_tokens + tokens
        drafts = depth + sum(guess.depth for guess in self._guesses)
        return first <= self._step_tokens and self._tree.make_room(tokens=first + drafts)

    def _forget(self, branches: Sequence[Branch]) -> None:
        """Release the followers of ended branches. Their tokens can be shared until the room is needed."""
        living = set(branches)
        for branch in [branch for branch in self._followers if branch not in living]:
            follower = self._followers.pop(branch)
            if follower.sequence_id is not None:
                self._tree.truncate(follower.sequence_id, follower.computed)
                self._tree.release(follower.sequence_id)

    def _slice(self, follower: Follower, size: int, rows: int) -> Slice:
        start = follower.computed
        return Slice(_id_of(follower), follower.branch.tokens[start : start + size], start, rows)

    def _compute(self, follower: Follower, size: int) -> None:
        start = follower.computed
        self._tree.append(_id_of(follower), follower.branch.keys[start : start + size])
        follower.computed += size

    def _compute_guess(self, follower: Follower, token: int) -> None:
        self._tree.append(_id_of(follower), cache_keys([token], follower.branch.ticket.owner))
        follower.guessed.append(token)


def _id_of(follower: Follower) -> int:
    assert follower.sequence_id is not None  # noqa: S101 - only followers with a sequence get into a batch
    return follower.sequence_id
