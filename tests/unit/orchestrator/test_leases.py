from services.orchestrator.core.leases import Leases


def test_an_owner_is_dead_when_its_beat_has_not_moved_for_the_lease():
    leases = Leases("me", lease_s=10, longest_gap_s=100)
    assert leases.observe({"me": 1, "a": 1, "b": 1}, 0.0) == {}
    assert leases.observe({"me": 1, "a": 2, "b": 1}, 9.5) == {}
    assert leases.observe({"me": 1, "a": 2, "b": 1}, 10.0) == {"b": 1}
    assert leases.observe({"me": 1, "a": 2}, 19.5) == {"a": 2}
    assert leases.observe({"me": 1, "a": 3}, 20.0) == {}


def test_who_has_not_looked_for_long_begins_anew_as_the_others_could_not_beat_either():
    leases = Leases("me", lease_s=10, longest_gap_s=5)
    for second in (0, 4, 8):
        assert leases.observe({"a": 1}, second) == {}
    assert leases.observe({"a": 1}, 14) == {}
    for second in (18, 22):
        assert leases.observe({"a": 1}, second) == {}
    assert leases.observe({"a": 1}, 24) == {"a": 1}
