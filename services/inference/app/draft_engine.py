"""Runs a draft model's batches before the step that verifies the drafts. Failures only end the drafting."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.clock import Clock
from pagantic_common.telemetry.logging import get_logger
from services.inference.app.cell_operations import Copy, apply_operation
from services.inference.core.scheduling.batch import Slice
from services.inference.core.scheduling.batching import Plan
from services.inference.core.scheduling.draft_model import DraftModel
from services.inference.core.scheduling.draft_worth import DraftPolicy, MeasuredWorth
from services.inference.core.scheduling.prefix_tree import PrefixTree
from services.inference.core.tuning import Tuning
from services.inference.ports import TextEngine

log = get_logger(__name__)

_MEASURED_STEPS = 3


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """The limits on the tokens of finished requests: cells in the cache, and host memory for parked cells."""

    max_idle_tokens: int = 0
    max_parked_bytes: int = 0


class DraftEngine:
    """An engine that drafts for another engine, and runs on that engine's thread.

    Args:
        engine: The engine of the draft model, which only this object uses.
        vocabulary_size: Token ids below this number mean the same in both models.
        limits: The limits of the draft model's cache.
        clock: The clock for costs.
        policy: Chooses the drafts. By default, drafts are chosen by their measured costs.
    """

    def __init__(
        self,
        engine: TextEngine,
        *,
        vocabulary_size: int,
        limits: CacheLimits,
        clock: Clock,
        policy: DraftPolicy | None = None,
    ) -> None:
        self.engine = engine
        self._vocabulary_size = vocabulary_size
        self._limits = limits
        self._clock = clock
        self.model = DraftModel(
            self._empty_tree(),
            policy or MeasuredWorth(),
            step_tokens=engine.max_batch_tokens,
            vocabulary_size=vocabulary_size,
        )

    @property
    def max_parked_bytes(self) -> int:
        """The maximum host memory for the parked tokens of the draft model."""
        return self._limits.max_parked_bytes

    def draft(self, plan: Plan) -> Plan:
        """Run the draft model, and return the plan with its drafts. After a failure, the plan has no new drafts."""
        if self.model.is_off:
            return plan
        try:
            self._draft_all()
        except Exception as error:  # noqa: BLE001 - decoding continues without drafts after any error
            self._switch_off(error)
        return plan.with_drafts()

    def measure(self) -> None:
        """Measure the cost of steps. Call this only while nothing is decoded.

        The cache is empty before and afterwards.
        """
        try:
            size = min(self.engine.max_batch_tokens, self.engine.kv_capacity_tokens)
            self._measure(0, size)
            for _ in range(_MEASURED_STEPS):
                self.engine.truncate(0, size - 1)
                self._measure(size - 1, 1)
            self.engine.truncate(0, 0)
        except Exception as error:  # noqa: BLE001 - see `draft`
            self._switch_off(error)

    def retune(self, tuning: Tuning) -> None:
        """Switch to another tuning. Call this only while nothing is decoded."""
        if self.model.is_off:
            return
        try:
            self.engine.retune(
                threads=tuning.threads, flash_attention=tuning.flash_attention, batch_tokens=tuning.step_tokens
            )
        except Exception as error:  # noqa: BLE001 - see `draft`
            self._switch_off(error)
            return
        self.model.renew(self._empty_tree(), self.engine.max_batch_tokens)
        self.measure()

    def close(self) -> None:
        """Free the model. Do not use the object afterwards."""
        self.engine.close()

    def _draft_all(self) -> None:
        for operation in self.model.take_operations():
            apply_operation(self.engine, operation, _store_nothing)
        while slices := self.model.next_slices():
            started_s = self._clock.monotonic_s()
            rows = self.engine.decode(slices)
            best = rows[:, : self._vocabulary_size].argmax(axis=1).tolist()
            self.model.take(best, self._clock.monotonic_s() - started_s)
        self.model.finish()

    def _measure(self, position: int, size: int) -> None:
        started_s = self._clock.monotonic_s()
        self.engine.decode([Slice(0, [0] * size, position, 1)])
        self.model.policy.learn_draft(size, self._clock.monotonic_s() - started_s)

    def _switch_off(self, error: Exception) -> None:
        log.error("the draft model failed: decoding goes on without it", error=f"{type(error).__name__}: {error}")
        self.model.switch_off()

    def _empty_tree(self) -> PrefixTree:
        return PrefixTree(
            capacity_tokens=self.engine.kv_capacity_tokens,
            max_sequences=self.engine.max_sequences,
            max_idle_tokens=self._limits.max_idle_tokens,
            max_parked_tokens=self._limits.max_parked_bytes // self.engine.kv_bytes_per_token,
        )


def _store_nothing(_name: str, _copy: Copy) -> None:
    """Store nothing, because only blocks of the main model are stored outside the process."""
