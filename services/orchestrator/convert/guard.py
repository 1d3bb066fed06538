"""What a guard did <-> GuardActed."""

from __future__ import annotations

from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.codec.enums import EnumCodec
from pagantic_common.domain.guards.plugin import GuardStage
from services.orchestrator.core.execution.events import GuardActed
from services.orchestrator.core.guards.rules import GuardOutcome, GuardReport

_STAGES = EnumCodec(event_pb2.GuardStage, GuardStage, "GUARD_STAGE_", unknown=GuardStage.INPUT)
_OUTCOMES = EnumCodec(event_pb2.GuardOutcome, GuardOutcome, "GUARD_OUTCOME_", unknown=GuardOutcome.BLOCKED)


def guard_acted_to_proto(acted: GuardActed) -> event_pb2.GuardActed:
    """Encode what a guard did."""
    report = acted.report
    return event_pb2.GuardActed(
        guard=report.guard,
        stage=_STAGES.to_proto(report.stage),
        outcome=_OUTCOMES.to_proto(report.outcome),
        finding_count=report.findings,
        kinds=report.kinds,
    )


def guard_acted_from_proto(acted: event_pb2.GuardActed) -> GuardActed:
    """Decode what a guard did."""
    return GuardActed(
        GuardReport(
            acted.guard,
            _STAGES.from_proto(acted.stage),
            _OUTCOMES.from_proto(acted.outcome),
            acted.finding_count,
            tuple(acted.kinds),
        )
    )
