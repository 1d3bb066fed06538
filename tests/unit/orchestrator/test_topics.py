from services.orchestrator.adapters.journal.changes.hub import (
    CHANGED,
    EVERYTHING,
    MAX_TOPICS,
    WANTED,
    Interests,
    read_message,
    topic_of,
    write_messages,
)
from tests.support.keys import execution, session


def test_topics_are_short_and_differ_by_kind_tenant_and_id():
    keys = [execution("a"), execution("b"), execution("a", "acme"), session("a"), execution("a" * 1000)]
    assert len({topic_of(key) for key in keys}) == len(keys)
    assert {len(topic_of(key)) for key in keys} == {16}


def test_messages_are_bounded_and_carry_every_topic():
    topics = {topic_of(execution(f"r{number}")) for number in range(1001)}
    texts = list(write_messages("me", CHANGED, topics))
    assert max(len(text) for text in texts) < 8000
    read = [read_message(text) for text in texts]
    assert {(one.sender, one.kind) for one in read} == {("me", CHANGED)}
    assert {topic for one in read for topic in one.topics} == topics
    assert list(write_messages("me", WANTED, [])) == []


def test_a_text_of_somebody_else_is_no_message():
    assert read_message("hello") is None
    assert read_message("") is None
    assert read_message("me whatever x") is None
    assert read_message("me wanted").topics == ()


def test_a_change_reaches_who_asked_before_it_and_who_asks_just_after_it():
    interests = Interests(kept_s=15, recent_s=3)
    assert interests.change(["a", "b"], 0) == []
    assert interests.want(["a", "c"], 2) == ["a"]
    assert interests.change(["a", "b", "c"], 10) == ["a", "c"]
    assert interests.want(["b"], 12) == ["b"]
    assert interests.want(["c"], 13.5) == []
    assert interests.change(["a"], 17) == []
    assert interests.change(["c"], 28) == ["c"]
    assert interests.change([EVERYTHING], 100) == [EVERYTHING]


def test_who_waits_for_too_much_is_told_of_everything():
    interests = Interests(kept_s=15, recent_s=3)
    interests.want([EVERYTHING], 0)
    assert interests.change(["a"], 1) == ["a"]


def test_interests_are_bounded():
    interests = Interests(kept_s=15, recent_s=3)
    names = [str(number) for number in range(MAX_TOPICS + 2)]
    interests.want(names, 0)
    assert interests.change(["0", "1", "2", names[-1]], 1) == ["2", names[-1]]
