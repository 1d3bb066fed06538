"""Decides, from measured costs, the branches that get drafts of a draft model and the lengths of the drafts.

Theory of operation. A draft of k tokens costs k steps of the draft model and k more rows of the main model's step, and
gains the tokens that the sampler picks. Three quantities are measured: the costs of both models by number of rows, and
the acceptance of each branch. Among all numbers of branches and lengths, the combination with the most expected tokens
per second is chosen if it is faster than decoding without drafts. Unmeasured costs count as their upper bounds.

If no draft is worthwhile, a trial measures again from time to time. Trials are paid from an account. The account earns
a share of the time of all steps and the savings of drafts, and pays the losses of drafts. Useless trials thus cost at
most this share. An account far in debt stops all drafts, because the measured costs then do not predict the real costs.

Source: expected tokens of speculative decoding by acceptance, Y. Leviathan et al., "Fast Inference from Transformers
via Speculative Decoding", ICML 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.inference.core.scheduling.drafting import StepCosts

MAX_DEPTH = 8
TRIAL_DEPTH = 4
TRIAL_ROUNDS = 8
INCOME_SHARE_OF_STEPS = 0.01
_MAX_ACCOUNT_STEPS = 200.0  # the account holds at most the time of this many steps
_MAX_DEBT_STEPS = 50.0
_ASSUMED_ACCEPTANCE = 0.7
# The acceptance of a branch adapts fast. The initial acceptance of new branches adapts slowly to all branches.
_BRANCH_LEARNING = 0.1
_SHARED_LEARNING = 0.01
_ASSUMED_TOKENS_LEFT = 128
_MARGIN = 1.03  # measurements within this factor count as equal
_FOLLOWING_MARGIN = 1.1  # to follow a branch, all its tokens are computed first, which cannot be undone


@dataclass(slots=True)
class Standing:
    """The state of a branch for the draft model.

    Attributes:
        acceptance: The estimated probability that a guess is right, given that the guesses before it were right.
        pending: The number of tokens that the draft model must compute before it can guess.
        limit: The maximum number of tokens to draft now.
        remaining: The maximum number of tokens that the branch may still get.
        trial_rounds: The number of drafts left in a trial, which are made even if they are not worthwhile.
    """

    acceptance: float
    pending: int = 0
    limit: int = 0
    remaining: int = 0
    trial_rounds: int = 0

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn from a draft. Each token up to the first rejected token counts as one trial."""
        for index in range(min(drafted, accepted + 1)):
            self.acceptance += _BRANCH_LEARNING * ((index < accepted) - self.acceptance)


@dataclass(frozen=True, slots=True)
class StepShape:
    """The size of a step before the draft model adds drafts.

    `rows` is the number of rows, `served` is the number of branches that continue in the step, and `left` is the number
    of rows that may be added.
    """

    rows: int
    served: int
    left: int


class DraftPolicy(Protocol):
    """Chooses the branches that get drafts, and the lengths of the drafts."""

    @property
    def first_acceptance(self) -> float:
        """The assumed acceptance of a new branch."""

    def depths(self, ready: Sequence[Standing], shape: StepShape, costs: StepCosts) -> list[int]:
        """Return the length of the draft for each ready branch; 0 means no draft."""

    def pays_to_follow(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Return whether the draft model should start to follow a branch."""

    def try_out(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Begin a trial with a branch if the account can pay for it, and return whether the trial began."""

    def learn_draft(self, rows: int, cost_s: float) -> None:
        """Learn the cost of a step of the draft model."""

    def settle(self, shape: StepShape, costs: StepCosts, *, cost_s: float, draft_s: float, gained: int) -> None:
        """Enter a step in the account.

        The entry includes the step's time, the draft model's time before the step, and the number of tokens that drafts
        gained.
        """

    def learn(self, standing: Standing, drafted: int, accepted: int) -> None:
        """Learn from a draft, whose first `accepted` tokens the sampler picked."""

    def renew(self) -> None:
        """Clear the learned costs, because the engine's options have changed."""


class MeasuredWorth:
    """Chooses drafts that are worthwhile by measured acceptances and costs, in seconds."""

    def __init__(self) -> None:
        self.first_acceptance = _ASSUMED_ACCEPTANCE
        self.account_s = 0.0
        self._gains_of_step: dict[tuple[float, StepShape], float] = {}
        self._draft_costs = StepCosts()

    def depths(self, ready: Sequence[Standing], shape: StepShape, costs: StepCosts) -> list[int]:
        """Return the length of the draft for each ready branch; 0 means no draft."""
        chosen = [0] * len(ready)
        if not ready or not self._may_spend(shape, costs):
            return chosen
        best = _MARGIN * shape.served / costs.estimate(shape.rows)
        order = sorted(range(len(ready)), key=lambda index: -ready[index].acceptance)
        for count in range(1, len(ready) + 1):
            drafting = [ready[index] for index in order[:count]]
            rate, depth = self._best_depth(drafting, shape, costs)
            if rate > best:
                best = rate
                chosen = [0] * len(ready)
                for index in order[:count]:
                    chosen[index] = min(depth, ready[index].limit)
        for index, standing in enumerate(ready):
            if standing.trial_rounds and not any(chosen):
                chosen[index] = min(TRIAL_DEPTH, standing.limit, shape.left)
                break
        return chosen

    def pays_to_follow(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Return whether following a branch is expected to gain more than it costs.

        The gain covers the rest of an answer. The cost is the time to compute the branch's pending tokens.
        """
        if not self._may_spend(shape, costs):
            return False
        plain_s = costs.estimate(shape.rows)
        gain = self._gain(standing.acceptance, shape, costs)
        if gain <= _FOLLOWING_MARGIN:
            return False
        rest_s = min(standing.remaining, _ASSUMED_TOKENS_LEFT) * plain_s
        return rest_s * (1 - 1 / gain) > self._draft_s(standing.pending, costs)

    def try_out(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Begin a trial if the account covers its cost even if all guesses are wrong."""
        if not costs.is_measured(shape.rows) or standing.remaining < TRIAL_ROUNDS:
            return False
        plain_s = costs.estimate(shape.rows)
        more_s = costs.bound(shape.rows + TRIAL_DEPTH) - plain_s + TRIAL_DEPTH * self._draft_s(1, costs)
        if self.account_s < self._draft_s(standing.pending, costs) + TRIAL_ROUNDS * more_s:
            return False
        standing.trial_rounds = TRIAL_ROUNDS
        return True

    def learn_draft(self, rows: int, cost_s: float) -> None:
        """Learn the cost of a step of the draft model."""
        self._draft_costs.learn(rows, cost_s)

    def settle(self, shape: StepShape, costs: StepCosts, *, cost_s: float, draft_s: float, gained: int) -> None:
        """Enter a step in the account.

        The entry includes the step's time, the draft model's time before the step, and the number of tokens that drafts
        gained.
        """
        plain_s = costs.estimate(shape.rows)
        self._gains_of_step.clear()
        self.account_s += INCOME_SHARE_OF_STEPS * cost_s
        if draft_s:
            self.account_s += gained * plain_s / max(1, shape.served) - draft_s - max(0.0, cost_s - plain_s)
        self.account_s = min(self.account_s, _MAX_ACCOUNT_STEPS * plain_s)

    def learn(self, standing: Standing, drafted: int, accepted: int) -> None:
        """Learn from a draft. The branch's acceptance adapts fast, and the acceptance of new branches slowly."""
        standing.learn(drafted, accepted)
        standing.trial_rounds = max(0, standing.trial_rounds - 1)
        self.first_acceptance += _SHARED_LEARNING * drafted * (standing.acceptance - self.first_acceptance)

    def renew(self) -> None:
        """Clear the learned costs."""
        self._draft_costs = StepCosts()

    def _best_depth(self, drafting: Sequence[Standing], shape: StepShape, costs: StepCosts) -> tuple[float, int]:
        """Return the best expected tokens per second if some branches get drafts of equal length, and that length."""
        best, best_depth = 0.0, 0
        tokens = float(shape.served)
        count = len(drafting)
        draft_s = self._draft_s(sum(standing.pending for standing in drafting), costs)
        for depth in range(1, min(MAX_DEPTH, shape.left // count) + 1):
            tokens += sum(standing.acceptance**depth for standing in drafting if depth <= standing.limit)
            rate = tokens / (costs.bound(shape.rows + count * depth) + draft_s)
            if rate > best:
                best, best_depth = rate, depth
            draft_s += self._draft_s(count, costs)
        return best, best_depth

    def _gain(self, acceptance: float, shape: StepShape, costs: StepCosts) -> float:
        """Return the token rate with drafts for branches of this acceptance, relative to the rate without drafts.

        Steps of the draft model are shared, so all branches count as if they had drafts.
        """
        gain = self._gains_of_step.get((acceptance, shape))
        if gain is None:
            caught_up = Standing(acceptance, 1, MAX_DEPTH)
            rate, _ = self._best_depth([caught_up] * min(shape.served, shape.left), shape, costs)
            gain = self._gains_of_step[acceptance, shape] = rate * costs.estimate(shape.rows) / shape.served
        return gain

    def _may_spend(self, shape: StepShape, costs: StepCosts) -> bool:
        """Return whether the cost of a step without drafts has been measured and the account is not too far in debt."""
        return costs.is_measured(shape.rows) and self.account_s > -_MAX_DEBT_STEPS * costs.estimate(shape.rows)

    def _draft_s(self, rows: int, costs: StepCosts) -> float:
        """Return the cost of a step of the draft model.

        Before any measurement, return the main model's cost, which is larger.
        """
        return self._draft_costs.bound(rows) or costs.bound(rows)
