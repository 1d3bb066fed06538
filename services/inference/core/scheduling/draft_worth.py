"""Decides from measured costs which branches get drafts of a draft model, and how long ones.

Theory of operation. A draft of k tokens costs k steps of the draft model and k more rows of the model's step, and gives
as many tokens as the sampler then picks. All three are measured: the costs of both models by rows, and the acceptance
of each branch. Of all numbers of branches and lengths, the one with the most expected tokens per second is taken, if it
beats decoding without drafts. What was not measured yet counts as the most that it may cost.

Where nothing pays, a trial measures again from time to time. Trials are paid from an account: it earns a share of the
time of all steps and what drafts save, and pays what drafts lose. So trials that never pay cost this share at most. An
account far in debt stops all drafts: then the measured costs do not predict what drafts really cost.
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
_MAX_ACCOUNT_STEPS = 200.0  # the account holds no more than the time of so many steps
_MAX_DEBT_STEPS = 50.0
_ASSUMED_ACCEPTANCE = 0.7
# A branch learns its own acceptance fast. The acceptance that new branches begin with follows all branches slowly.
_BRANCH_LEARNING = 0.1
_SHARED_LEARNING = 0.01
_ASSUMED_TOKENS_LEFT = 128
_MARGIN = 1.03  # measurements within this factor are equal
_FOLLOWING_MARGIN = 1.1  # following costs the computing of a branch's tokens, which cannot be undone


@dataclass(slots=True)
class Standing:
    """How a branch stands with the draft model.

    Attributes:
        acceptance: The estimated probability that a guess is right, after right ones.
        pending: Tokens that the draft model must compute before it can guess.
        limit: Most tokens to draft now.
        remaining: Most tokens that the branch may still get.
        trial_rounds: Drafts to make whether they pay or not.
    """

    acceptance: float
    pending: int = 0
    limit: int = 0
    remaining: int = 0
    trial_rounds: int = 0

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn from a draft: one trial per token up to the first refused one."""
        for index in range(min(drafted, accepted + 1)):
            self.acceptance += _BRANCH_LEARNING * ((index < accepted) - self.acceptance)


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step without drafts of the draft model: its rows, the branches that continue in it, and the rows left."""

    rows: int
    served: int
    left: int


class DraftPolicy(Protocol):
    """Chooses drafts."""

    @property
    def first_acceptance(self) -> float:
        """The acceptance that a new branch is assumed to have."""

    def depths(self, ready: Sequence[Standing], shape: StepShape, costs: StepCosts) -> list[int]:
        """Return the length of a draft for each branch that the draft model can guess for; 0 is none."""

    def pays_to_follow(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Tell whether the draft model should compute the tokens of a branch that it has not followed."""

    def try_out(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Begin a trial with a branch, and return True, if its cost can be paid."""

    def learn_draft(self, rows: int, cost_s: float) -> None:
        """Learn the cost of a step of the draft model."""

    def settle(self, shape: StepShape, costs: StepCosts, *, cost_s: float, draft_s: float, gained: int) -> None:
        """Enter a step in the account: its time, the draft model's before it, and the tokens that drafts gained."""

    def learn(self, standing: Standing, drafted: int, accepted: int) -> None:
        """Learn from a draft, whose first `accepted` tokens the sampler picked."""

    def renew(self) -> None:
        """Forget the costs: the engine runs in another way from now on."""


class MeasuredWorth:
    """Drafts where the measured costs and acceptances say that it pays; costs are in seconds."""

    def __init__(self) -> None:
        self.first_acceptance = _ASSUMED_ACCEPTANCE
        self.account_s = 0.0
        self._gains_of_step: dict[tuple[float, StepShape], float] = {}
        self._draft_costs = StepCosts()

    def depths(self, ready: Sequence[Standing], shape: StepShape, costs: StepCosts) -> list[int]:
        """Return the length of a draft for each branch; 0 is none."""
        chosen = [0] * len(ready)
        if not ready or not self._may_spend(shape, costs):
            return chosen
        best = _MARGIN * shape.served / costs.estimate(shape.rows)
        order = sorted(range(len(ready)), key=lambda index: -ready[index].acceptance)
        for count in range(1, len(ready) + 1):
            taken = [ready[index] for index in order[:count]]
            rate, depth = self._best_depth(taken, shape, costs)
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
        """Tell whether the expected gain over the rest of an answer exceeds the cost of computing its tokens."""
        if not self._may_spend(shape, costs):
            return False
        plain_s = costs.estimate(shape.rows)
        gain = self._gain(standing.acceptance, shape, costs)
        if gain <= _FOLLOWING_MARGIN:
            return False
        rest_s = min(standing.remaining, _ASSUMED_TOKENS_LEFT) * plain_s
        return rest_s * (1 - 1 / gain) > self._draft_s(standing.pending, costs)

    def try_out(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Begin a trial if the account has what it costs when every guess is wrong."""
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
        """Enter a step in the account: its time, the draft model's before it, and the tokens that drafts gained."""
        plain_s = costs.estimate(shape.rows)
        self._gains_of_step.clear()
        self.account_s += INCOME_SHARE_OF_STEPS * cost_s
        if draft_s:
            self.account_s += gained * plain_s / max(1, shape.served) - draft_s - max(0.0, cost_s - plain_s)
        self.account_s = min(self.account_s, _MAX_ACCOUNT_STEPS * plain_s)

    def learn(self, standing: Standing, drafted: int, accepted: int) -> None:
        """Learn from a draft: the branch's acceptance, and slowly that which new branches begin with."""
        standing.learn(drafted, accepted)
        standing.trial_rounds = max(0, standing.trial_rounds - 1)
        self.first_acceptance += _SHARED_LEARNING * drafted * (standing.acceptance - self.first_acceptance)

    def renew(self) -> None:
        """Forget the costs."""
        self._draft_costs = StepCosts()

    def _best_depth(self, taken: Sequence[Standing], shape: StepShape, costs: StepCosts) -> tuple[float, int]:
        """Return the most expected tokens per second with drafts of one length for some branches, and the length."""
        best, best_depth = 0.0, 0
        tokens = float(shape.served)
        count = len(taken)
        draft_s = self._draft_s(sum(standing.pending for standing in taken), costs)
        for depth in range(1, min(MAX_DEPTH, shape.left // count) + 1):
            tokens += sum(standing.acceptance**depth for standing in taken if depth <= standing.limit)
            rate = tokens / (costs.bound(shape.rows + count * depth) + draft_s)
            if rate > best:
                best, best_depth = rate, depth
            draft_s += self._draft_s(count, costs)
        return best, best_depth

    def _gain(self, acceptance: float, shape: StepShape, costs: StepCosts) -> float:
        """Return the rate of tokens with drafts for branches of an acceptance, as a share of that without drafts.

        Steps of the draft model are shared, so all branches count as if they had drafts.
        """
        gain = self._gains_of_step.get((acceptance, shape))
        if gain is None:
            caught_up = Standing(acceptance, 1, MAX_DEPTH)
            rate, _ = self._best_depth([caught_up] * min(shape.served, shape.left), shape, costs)
            gain = self._gains_of_step[acceptance, shape] = rate * costs.estimate(shape.rows) / shape.served
        return gain

    def _may_spend(self, shape: StepShape, costs: StepCosts) -> bool:
        """Tell whether the cost of a step without drafts is known, and the account not far in debt."""
        return costs.is_measured(shape.rows) and self.account_s > -_MAX_DEBT_STEPS * costs.estimate(shape.rows)

    def _draft_s(self, rows: int, costs: StepCosts) -> float:
        """Return the cost of a step of the draft model; before it is measured, that of the model, which is larger."""
        return self._draft_costs.bound(rows) or costs.bound(rows)
