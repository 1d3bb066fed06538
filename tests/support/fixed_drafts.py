"""A policy of drafts that does not ask whether they pay."""

from collections.abc import Sequence

from services.inference.core.scheduling.draft_worth import Standing, StepShape
from services.inference.core.scheduling.drafting import StepCosts


class FixedDepth:
    """Drafts of one length for every branch, whatever they cost."""

    first_acceptance = 0.7

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def depths(self, ready: Sequence[Standing], shape: StepShape, costs: StepCosts) -> list[int]:
        """Return the fixed length, as far as rows are left."""
        left, chosen = shape.left, []
        for standing in ready:
            chosen.append(min(self._depth, standing.limit, left))
            left -= chosen[-1]
        return chosen

    def pays_to_follow(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Follow every branch."""
        return True

    def try_out(self, standing: Standing, shape: StepShape, costs: StepCosts) -> bool:
        """Try nothing, since every branch is followed."""
        return False

    def learn_draft(self, rows: int, cost_s: float) -> None:
        """Ignore the cost."""

    def settle(self, shape: StepShape, costs: StepCosts, *, cost_s: float, draft_s: float, gained: int) -> None:
        """Keep no account."""

    def learn(self, standing: Standing, drafted: int, accepted: int) -> None:
        """Learn the branch's acceptance."""
        standing.learn(drafted, accepted)

    def renew(self) -> None:
        """Keep nothing to forget."""
