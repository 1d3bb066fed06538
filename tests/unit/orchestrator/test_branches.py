"""An execution only waits if none of its branches is busy."""

from datetime import UTC, datetime, timedelta

from services.orchestrator.app.effects.waits import Outstanding, Waits

SOON = datetime(2026, 1, 2, tzinfo=UTC)
LATER = SOON + timedelta(days=1)


def test_an_execution_waits_once_every_branch_waits():
    waits = Waits()
    assert waits.outstanding is None
    with waits.forked():
        assert waits.outstanding is None, "nothing waits"
        with waits.branch(), waits.branch(), waits.waiting("c1", LATER):
            assert waits.outstanding is None
            with waits.waiting("c2", SOON):
                assert waits.outstanding == Outstanding(frozenset({"c1", "c2"}), SOON)
            assert waits.outstanding is None
    assert waits.outstanding is None


def test_a_handover_between_branches_shows_as_a_change():
    waits = Waits()
    with waits.forked(), waits.branch(), waits.waiting("c1", SOON):
        before = waits.change_count
        with waits.branch():
            assert waits.outstanding is None
        assert waits.outstanding is not None
        assert waits.change_count > before


def test_equal_ids_of_two_branches_are_one_call():
    waits = Waits()
    with waits.forked(), waits.branch(), waits.branch(), waits.waiting("c1", LATER):
        with waits.waiting("c1", SOON):
            assert waits.outstanding == Outstanding(frozenset({"c1"}), SOON)
        assert waits.outstanding is None
