"""Builds the reports of single stages, and the failure that a failed stage causes."""

from __future__ import annotations

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.validation import Stage, StageOutcome, StageReport, Violation

MAX_DETAILED_VIOLATIONS = 50


def skipped(stage: Stage, reason: str) -> StageReport:
    """Return the report of a skipped stage."""
    return StageReport(stage, StageOutcome.SKIPPED, (reason,))


def passed(stage: Stage, *reasons: str) -> StageReport:
    """Return the report of a passed stage."""
    return StageReport(stage, StageOutcome.PASSED, reasons)


def repaired(stage: Stage, *reasons: str) -> StageReport:
    """Return the report of a stage that changed the output."""
    return StageReport(stage, StageOutcome.REPAIRED, reasons)


def failed(stage: Stage, *violations: Violation, reasons: tuple[str, ...] = ()) -> StageReport:
    """Return the report of a failed stage."""
    return StageReport(stage, StageOutcome.FAILED, reasons, violations)


def failure_of_report(report: StageReport) -> Failure:
    """Return the failure of a failed stage. Violations with different codes are reported as a schema violation."""
    codes = {violation.code for violation in report.violations}
    code = ErrorCode.CONSTRAINT_SCHEMA_INVALID
    if len(codes) == 1:
        code = codes.pop() or code
    count = len(report.violations)
    message = report.violations[0].message
    if count > 1:
        message += f" (and {count - 1} more)"
    listed = [
        {"path": violation.path, "message": violation.message}
        for violation in report.violations[:MAX_DETAILED_VIOLATIONS]
    ]
    return failure_of(code, message, details={"violations": listed, "violation_count": count})
