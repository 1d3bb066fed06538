"""Converts the results of the constraint pipeline between protobuf messages and domain types."""

from __future__ import annotations

from pagantic.constraint.v1 import contract_pb2
from pagantic_common.codec.errors import error_code_from_proto, error_code_to_proto
from pagantic_common.codec.fields import EnumCodec
from pagantic_common.codec.messages import duration_from_proto, duration_to_proto
from pagantic_common.domain.validation import Guarantee, Stage, StageOutcome, StageReport, Violation

_STAGES = EnumCodec(contract_pb2.Stage, Stage, "STAGE_", unknown=None)
_OUTCOMES = EnumCodec(contract_pb2.StageOutcome, StageOutcome, "STAGE_OUTCOME_", unknown=None)
_GUARANTEES = EnumCodec(contract_pb2.Guarantee, Guarantee, "GUARANTEE_", unknown=Guarantee.UNSPECIFIED)


def stage_to_proto(stage: Stage) -> contract_pb2.Stage.ValueType:
    """Encode a stage."""
    return _STAGES.to_proto(stage)


def stage_from_proto(number: int) -> Stage:
    """Decode a stage. Raises ValueError if the stage is unset or from a newer version."""
    stage = _STAGES.from_proto(number)
    if stage is None:
        raise ValueError(f"there is no stage {number}")
    return stage


def guarantee_to_proto(guarantee: Guarantee) -> contract_pb2.Guarantee.ValueType:
    """Encode a guarantee."""
    return _GUARANTEES.to_proto(guarantee)


def guarantee_from_proto(number: int) -> Guarantee:
    """Decode a guarantee. A guarantee from a newer version becomes UNSPECIFIED."""
    return _GUARANTEES.from_proto(number)


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
        outcome=_OUTCOMES.to_proto(report.outcome),
        reasons=report.reasons,
        violations=[violation_to_proto(violation) for violation in report.violations],
        duration=duration_to_proto(report.duration_s),
    )


def stage_report_from_proto(report: contract_pb2.StageReport) -> StageReport:
    """Decode a stage report. Raises ValueError if the stage or outcome is unset or from a newer version."""
    outcome = _OUTCOMES.from_proto(report.outcome)
    if outcome is None:
        raise ValueError(f"there is no stage outcome {report.outcome}")
    return StageReport(
        stage=stage_from_proto(report.stage),
        outcome=outcome,
        reasons=tuple(report.reasons),
        violations=tuple(violation_from_proto(violation) for violation in report.violations),
        duration_s=duration_from_proto(report.duration),
    )
