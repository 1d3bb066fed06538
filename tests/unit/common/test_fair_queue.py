from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.workers.fair_queue import FairQueue


def drain(queue):
    taken = []
    while (item := queue.take()) is not None:
        taken.append(item)
    return taken


def test_owners_take_turns_whoever_has_more():
    queue = FairQueue(10)
    for owner, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
        assert queue.add(owner, item) is None
    assert drain(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_has_most_gives_way_and_nobody_else():
    queue = FairQueue(3)
    assert [queue.add("a", f"a{number}") for number in range(3)] == [None] * 3
    assert queue.add("a", "a3") == "a3"
    assert queue.add("b", "b0") == "a2"
    assert queue.add("b", "b1") == "b1", "both have as many then: the one who asks for more gives way"
    assert queue.add("c", "c0") == "a1"
    assert queue.add("d", "d0") == "d0", "all have one"
    assert drain(queue) == ["a0", "b0", "c0"]


def test_what_nobody_waits_for_is_removed():
    queue = FairQueue(2)
    queue.add("a", "a1")
    queue.remove("a", "a1")
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    assert (len(queue), queue.take()) == (0, None)


def test_an_owner_that_may_not_take_an_item_keeps_its_turn():
    queue = FairQueue(10)
    for owner, item in (("a", "a1"), ("b", "b1"), ("b", "b2"), (None, "n1")):
        queue.add(owner, item)
    assert queue.take(lambda owner: owner != "a") == "b1"
    assert queue.take(lambda _owner: False) is None
    assert len(queue) == 3
    assert drain(queue) == ["a1", "n1", "b2"]


STEPS = st.lists(st.one_of(st.sampled_from("abc"), st.none(), st.integers(0, 5)), max_size=60)


@given(STEPS, st.integers(1, 6))
def test_nothing_is_lost_and_no_owner_waits_longer_than_a_round(steps, capacity):
    """A letter adds for an owner, None takes, a number removes one of those that wait."""
    queue, model, passed, numbers = FairQueue(capacity), {}, Counter(), iter(range(1000))
    for step in steps:
        if step is None:
            item = queue.take()
            assert (item is None) == (not model)
            if item is not None:
                owner = item[0]
                assert model[owner].popleft() == item
                passed.pop(owner, None)
                model = {name: line for name, line in model.items() if line}
                for name in model:
                    if name != owner:
                        passed[name] += 1
                        assert passed[name] <= 3, "each of the others was served once since"
        elif isinstance(step, int):
            waiting = [item for line in model.values() for item in line]
            if step < len(waiting):
                item = waiting[step]
                queue.remove(item[0], item)
                model[item[0]].remove(item)
        else:
            item = (step, next(numbers))
            model.setdefault(step, deque()).append(item)
            refused = queue.add(step, item)
            if refused is not None:
                most = max(map(len, model.values()))
                assert len(model[refused[0]]) == most
                assert model[refused[0]].pop() == refused
        model = {name: line for name, line in model.items() if line}
        passed = Counter({name: count for name, count in passed.items() if name in model})
        assert len(queue) == sum(map(len, model.values())) <= capacity
