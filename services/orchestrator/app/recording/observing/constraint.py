"""The constraint service, with a span for each compilation and validation."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.validation import Enforcement
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_histogram
from pagantic_common.telemetry.names import ORCHESTRATOR_VALIDATION_DURATION, VALIDATION_VALID
from pagantic_common.telemetry.tracing import span
from services.orchestrator.app.recording.observing.experiment import variant_labels
from services.orchestrator.app.recording.observing.measured import measured
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.services import CompiledConstraint, ConstraintPort

validation_duration = make_histogram(
    ORCHESTRATOR_VALIDATION_DURATION, "how long validations took that ended", unit="s", bounds=DURATION_BOUNDS_S
)


class ObservedConstraint(ConstraintPort):
    """A constraint service that opens a span for each compilation and validation."""

    def __init__(self, constraint: ConstraintPort) -> None:
        self._constraint = constraint

    async def compile(self, output: OutputContract, sources: Sequence[str] = ()) -> CompiledConstraint:
        with span("compile"):
            return await self._constraint.compile(output, sources)

    async def compile_rules(self, request: Request) -> None:
        with span("compile"):
            await self._constraint.compile_rules(request)

    async def enforce(
        self, text: str, request: Request, *, is_decoder_enforced: bool, sources: Sequence[str] = ()
    ) -> Enforcement:
        labels = dict(variant_labels())
        with measured("validate", {}, validation_duration, labels) as opened:
            enforcement = await self._constraint.enforce(
                text, request, is_decoder_enforced=is_decoder_enforced, sources=sources
            )
            opened.set_attribute(VALIDATION_VALID, enforcement.valid)
            labels[VALIDATION_VALID] = str(enforcement.valid).lower()
        return enforcement
