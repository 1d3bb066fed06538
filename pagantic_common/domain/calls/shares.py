"""Divides a capacity among owners without a setting for the share of one owner.

Source: a dynamic threshold, as in A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for multipoint
shared-memory packet switches", 1998.
"""

from __future__ import annotations

import math

# A single active tenant gets two thirds of a capacity, which leaves room for other tenants.
TENANT_WEIGHT = 2.0


def left_of_share(held: int, free: int, weight: float) -> int:
    """Return the additional amount that an owner of `held` may take. It is negative if the owner holds too much."""
    return int(weight * free) - held


class Shares:
    """A capacity whose owners may each hold at most `weight` times the free amount.

    With weight 1, a busy owner gets half of the capacity, two owners get a third each, and n owners get 1 / (n + 1)
    each, as soon as earlier work of the others has ended. The rest stays free for newcomers: an owner that holds
    nothing may begin if its amount is free. With a weight of at most 1, an owner that holds something never takes the
    last of the capacity.

    The owner None represents the single user of a local system. It does not share, and may hold the whole capacity.

    Args:
        capacity: The amount to divide, such as a number of connections or bytes.
        weight: The largest ratio of an owner's amount to the free amount.
    """

    def __init__(self, capacity: int, *, weight: float = 1.0) -> None:
        self.capacity = capacity
        self._weight = weight
        self._used = 0
        self._held: dict[str | None, int] = {}

    @property
    def free(self) -> int:
        """The amount that no owner holds."""
        return self.capacity - self._used

    def held_by(self, owner: str | None) -> int:
        """Return the amount that an owner holds."""
        return self._held.get(owner, 0)

    def left_for(self, owner: str | None) -> int:
        """Return the additional amount that an owner may hold."""
        held = self.held_by(owner)
        if owner is None or not held:
            return self.free
        return max(0, min(self.free, left_of_share(held, self.free, self._weight)))

    def lacking(self, owner: str | None, amount: int = 1) -> int:
        """Return the amount that others must free before the owner may hold an additional amount, or 0 if it may."""
        held, needed = self.held_by(owner), amount
        if owner is not None and held:
            needed = max(needed, math.ceil((held + amount) / self._weight))
        return max(0, needed - self.free)

    def begin(self, owner: str | None, amount: int = 1) -> bool:
        """Let the owner hold an additional amount if its share allows it. Return whether it does."""
        if amount > self.left_for(owner):
            return False
        self._held[owner] = self.held_by(owner) + amount
        self._used += amount
        return True

    def end(self, owner: str | None, amount: int = 1) -> None:
        """Free an amount that the owner holds. Raises ValueError if the owner holds less."""
        left = self.held_by(owner) - amount
        if left < 0:
            raise ValueError(f"{owner!r} holds {left + amount}, and ends {amount}")
        self._used -= amount
        if left:
            self._held[owner] = left
        else:
            self._held.pop(owner, None)
