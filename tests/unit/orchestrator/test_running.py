"""Why a caller is not there any more."""

import time

import pytest

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.running import caller_left


@pytest.mark.parametrize(
    ("left_s", "watched_s", "code"),
    [
        (None, 5.0, ErrorCode.CANCELLED_SIGNAL),
        (0.0, 5.0, ErrorCode.CANCELLED_TIMEOUT),
        (0.01, 0.0, ErrorCode.CANCELLED_TIMEOUT),
        (0.9, 110.0, ErrorCode.CANCELLED_TIMEOUT),  # 110.1 s are told as 111 s
        (0.9, 10.0, ErrorCode.CANCELLED_SIGNAL),
        (30.0, 60.0, ErrorCode.CANCELLED_SIGNAL),
    ],
)
def test_a_caller_that_leaves_at_its_deadline_ran_out_of_time_though_our_clock_is_not_quite_there(
    left_s, watched_s, code
):
    with work_scope(deadline=Deadline.after(time.monotonic(), left_s)):
        assert caller_left(watched_s).code is code
