"""The stages of the pipeline as spans."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pagantic_common.domain.validation import StageOutcome, StageReport
from pagantic_common.telemetry.names import STAGE, STAGE_OUTCOME
from pagantic_common.telemetry.spans import record_span


def record_stages(stages: Sequence[StageReport]) -> None:
    """Record stages that ran one after the other, up to now.

    They ran in another process, so their own times are unknown here.
    """
    ended_s = time.monotonic()
    for report in reversed(stages):
        if report.outcome is StageOutcome.SKIPPED:
            continue
        began_s = ended_s - report.duration_s
        attributes = {STAGE: report.stage.value, STAGE_OUTCOME: report.outcome.value}
        record_span(f"stage {report.stage.value}", began_s, ended_s, attributes)
        ended_s = began_s
