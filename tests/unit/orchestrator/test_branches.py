"""An execution only waits if none of its branches is busy."""

from datetime import UTC, datetime, timedelta

from services.orchestrator.app.effects.branches import Branches, Outstanding

SOON = datetime(2026, 1, 2, tzinfo=UTC)
LATER = SOON + timedelta(days=1)


def test_an_execution_waits_once_every_branch_waits():
    branches = Branches()
    assert branches.outstanding is None
    with branches.forked():
        assert branches.outstanding is None, "nothing waits"
        with branches.branch(), branches.branch(), branches.waiting("c1", LATER):
            assert branches.outstanding is None
            with branches.waiting("c2", SOON):
                assert branches.outstanding == Outstanding(frozenset({"c1", "c2"}), SOON)
            assert branches.outstanding is None
    assert branches.outstanding is None


def test_a_handover_between_branches_shows_as_a_change():
    branches = Branches()
    with branches.forked(), branches.branch(), branches.waiting("c1", SOON):
        before = branches.change_count
        with branches.branch():
            assert branches.outstanding is None
        assert branches.outstanding is not None
        assert branches.change_count > before


def test_equal_ids_of_two_branches_are_one_call():
    branches = Branches()
    with branches.forked(), branches.branch(), branches.branch(), branches.waiting("c1", LATER):
        with branches.waiting("c1", SOON):
            assert branches.outstanding == Outstanding(frozenset({"c1"}), SOON)
        assert branches.outstanding is None
