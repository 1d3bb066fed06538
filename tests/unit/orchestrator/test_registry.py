"""What has room among what runs, and why a caller is not there any more."""

import time

import pytest

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode, Overloaded, Unavailable
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.running.environment import caller_left
from services.orchestrator.app.running.registry import MAX_UNRECORDED, Registry
from services.orchestrator.core.model.keys import Account
from tests.support.keys import execution


class Run:
    """All that a registry knows of an execution."""

    def __init__(self, request_id, size_bytes=0, tenant="default", subject=""):
        self.key = execution(request_id, tenant)
        self.account = Account(tenant, subject)
        self.size_bytes = size_bytes
        self.admitted = self.ended = self
        self.is_set = False

    def set(self):
        self.is_set = True


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


def test_what_nobody_waits_for_is_added_only_while_half_of_the_bytes_are_free():
    registry = Registry(max_running=100, max_bytes=1000)
    runs = [Run("r1", 300), Run("r2", 300)]
    for run, has_room in zip(runs, (True, False), strict=True):
        registry.add(run)
        assert registry.has_room_for_others is has_room
    registry.remove(runs[0], is_recorded=True)
    assert runs[0].is_set
    assert registry.has_room_for_others


def test_nothing_new_is_added_while_very_many_could_not_be_recorded():
    registry = Registry(max_running=100, max_bytes=1000)
    for number in range(MAX_UNRECORDED):
        lost = Run(f"lost-{number}")
        registry.add(lost)
        registry.remove(lost, is_recorded=False)
    with pytest.raises(Unavailable, match="10000 executions could not be recorded") as refused:
        registry.add(Run("r"))
    assert refused.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
    assert registry.count == 0
    registry.mark_recorded(registry.unrecorded)  # as a beat does that the journal takes
    registry.add(Run("r"))
    assert registry.count == 1


def test_one_tenant_does_not_take_the_room_of_another():
    registry = Registry(max_running=4, max_bytes=1000, max_of_tenant=2)
    runs = [Run(f"r{number}", tenant="acme") for number in range(2)]
    for run in runs:
        registry.add(run)
    with pytest.raises(Overloaded, match="2 executions of tenant 'acme' run") as refused:
        registry.add(Run("r2", tenant="acme"))
    assert (refused.value.code, refused.value.retry_after_s) == (ErrorCode.QUOTA_CONCURRENCY, 1.0)
    registry.add(Run("r2", tenant="beta"))
    with registry.counted(Account("beta"), 0), pytest.raises(Overloaded, match="tenant 'beta'"):
        registry.check_room(Account("beta"))
    registry.check_room(Account("beta"))
    registry.remove(runs[0], is_recorded=True)
    registry.add(Run("r3", tenant="acme"))
    assert registry.count == 3


def test_a_tenant_has_a_limit_of_bytes_of_its_own():
    registry = Registry(max_running=100, max_bytes=1000, max_bytes_of_tenant=300)
    registry.add(Run("big", 500, tenant="acme"))  # one alone may be larger
    with pytest.raises(Overloaded, match="requests of tenant 'acme' that run have 500 bytes") as refused:
        registry.add(Run("r2", 1, tenant="acme"))
    assert refused.value.code is ErrorCode.QUOTA_CONCURRENCY
    with registry.held(Account("beta"), 200):
        registry.check_bytes(Account("beta", "ci"), 100)
        with pytest.raises(Overloaded):
            registry.check_bytes(Account("beta", "ci"), 101)
    registry.add(Run("other", 300, tenant="beta"))


def test_a_tenant_without_a_limit_leaves_room_for_others():
    registry = Registry(max_running=6, max_bytes=900, has_tenants=True)
    for number in range(4):
        registry.add(Run(f"r{number}", 140, tenant="acme", subject=f"user{number}"))
    with pytest.raises(Overloaded, match="4 executions of tenant 'acme' run, which is its share of 6") as refused:
        registry.add(Run("r4", tenant="acme"))
    assert (refused.value.code, refused.value.retry_after_s) == (ErrorCode.QUOTA_CONCURRENCY, 1.0)
    registry.check_bytes(Account("acme"), 120)
    with pytest.raises(Overloaded, match="have 560 bytes already, which is its share of 900") as refused:
        registry.check_bytes(Account("acme"), 121)
    assert refused.value.code is ErrorCode.QUOTA_CONCURRENCY
    registry.add(Run("other", 340, tenant="beta"))
    registry.add(Run("third", tenant="gamma"))
    with pytest.raises(Overloaded, match="6 executions run already"):
        registry.check_room(Account("delta"))


def test_a_tenant_alone_may_send_more_bytes_than_its_share_and_then_only_work_without_bytes():
    registry = Registry(max_running=100, max_bytes=900, has_tenants=True)
    registry.add(Run("large", 850, tenant="acme"))
    with registry.counted(Account("acme"), 0):
        registry.add(Run("resumed", tenant="acme"))
    with pytest.raises(Overloaded, match="which is its share"):
        registry.check_bytes(Account("acme"), 1)
    registry.add(Run("other", 50, tenant="beta"))


def test_a_subject_has_a_limit_within_its_tenants():
    registry = Registry(max_running=100, max_bytes=1000, max_of_tenant=3, max_of_subject=1)
    mine = Run("r1", tenant="acme", subject="ci")
    registry.add(mine)
    with pytest.raises(Overloaded, match="1 executions of subject 'ci' of tenant 'acme' run") as refused:
        registry.add(Run("r2", tenant="acme", subject="ci"))
    assert refused.value.code is ErrorCode.QUOTA_CONCURRENCY
    registry.add(Run("r3", tenant="beta", subject="ci"))
    for number in range(2):
        registry.add(Run(f"other{number}", tenant="acme", subject=f"web{number}"))
    with pytest.raises(Overloaded, match="3 executions of tenant 'acme' run"):
        registry.add(Run("r4", tenant="acme", subject="third"))
    registry.remove(mine, is_recorded=True)
    resumed = Run("r5", tenant="acme")
    registry.add(resumed)
    registry.recount(resumed, 7, Account("acme", "ci"))
    with pytest.raises(Overloaded, match="subject 'ci'"):
        registry.check_room(Account("acme", "ci"))
    registry.remove(resumed, is_recorded=True)
    registry.check_room(Account("acme", "ci"), 1000)
