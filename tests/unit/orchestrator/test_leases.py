from services.orchestrator.core.leases import Leases


def test_an_owner_is_dead_when_its_beat_has_not_moved_for_the_lease():
    leases = Leases("me", lease_s=10)
    assert leases.observe({"me": 1, "a": 1, "b": 1}, 0.0) == []
    assert leases.observe({"me": 1, "a": 2, "b": 1}, 9.9) == []
    assert leases.observe({"me": 1, "a": 2, "b": 1}, 10.0) == ["b"]
    assert leases.observe({"me": 1, "a": 2}, 20.0) == ["a"]
    assert leases.observe({"me": 1, "a": 3}, 20.1) == []
