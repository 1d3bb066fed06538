"""What the constraint pipeline finds <-> the domain."""

from __future__ import annotations

from pagantic.constraint.v1 import contract_pb2
from pagantic_common.codec.errors import error_code_from_proto, error_code_to_proto
from pagantic_common.codec.messages import duration_from_proto, duration_to_proto
from pagantic_common.domain.validation import Guarantee, Stage, StageOutcome, StageReport, Violation


def stage_to_proto(stage: Stage) -> contract_pb2.Stage.ValueType:
    """Encode a stage."""
    return contract_pb2.Stage.Value(f"STAGE_{stage.value}")


def stage_from_proto(stage: contract_pb2.Stage.ValueType) -> Stage:
    """Decode a stage."""
    return Stage(contract_pb2.Stage.Name(stage).removeprefix("STAGE_"))


def guarantee_to_proto(guarantee: Guarantee) -> contract_pb2.Guarantee.ValueType:
    """Encode a guarantee."""
    return contract_pb2.Guarantee.Value(f"GUARANTEE_{guarantee.value}")


def guarantee_from_proto(guarantee: contract_pb2.Guarantee.ValueType) -> Guarantee:
    """Decode a guarantee."""
    return Guarantee(contract_pb2.Guarantee.Name(guarantee).removeprefix("GUARANTEE_"))


def violation_to_proto(violation: Violation) -> contract_pb2.Violation:
    """Encode a violation."""
    return contract_pb2.Violation(
        code=error_code_to_proto(violation.code), path=violation.path, message=violation.message
    )


def violation_from_proto(violation: contract_pb2.Violation) -> Violation:
    """Decode a violation."""
    return Violation(error_code_from_proto(violation.code), violation.message, violation.path)


def stage_report_to_proto(report: StageReport) -> contract_pb2.StageReport:
    """Encode a stage report."""
    return contract_pb2.StageReport(
        stage=stage_to_proto(report.stage),
        outcome=contract_pb2.StageOutcome.Value(f"STAGE_OUTCOME_{report.outcome.value}"),
        reasons=report.reasons,
        violations=[violation_to_proto(violation) for violation in report.violations],
        duration=duration_to_proto(report.duration_s),
    )


def stage_report_from_proto(report: contract_pb2.StageReport) -> StageReport:
    """Decode a stage report."""
    return StageReport(
        stage=stage_from_proto(report.stage),
        outcome=StageOutcome(contract_pb2.StageOutcome.Name(report.outcome).removeprefix("STAGE_OUTCOME_")),
        reasons=tuple(report.reasons),
        violations=tuple(violation_from_proto(violation) for violation in report.violations),
        duration_s=duration_from_proto(report.duration),
    )
