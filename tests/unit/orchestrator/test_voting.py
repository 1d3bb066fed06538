import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.core.model.voting import Strategy, Voting, canonical_json, count_votes, is_decided

A, B, C = '{"x": 1, "y": [1]}', '{"x": 2, "y": [1]}', '{"x": 3, "y": [2]}'
MAJORITY, STRICT, UNANIMITY, FIELDS = Strategy


def replicas_of(*documents):
    """Number the documents; None abstains."""
    return {index: document for index, document in enumerate(documents) if document is not None}


def count(*documents, strategy=MAJORITY, **fields):
    return count_votes(replicas_of(*documents), Voting(n=len(documents), strategy=strategy, **fields))


def test_votes_compare_by_value_and_not_by_text():
    same = ['{"a": 1, "b": 2.50}', '{ "b":2.5,"a":1.0 }', '{"b": 25e-1, "a": 1}']
    assert len({canonical_json(text) for text in same}) == 1
    assert canonical_json("9007199254740993") != canonical_json("9007199254740992")
    assert count(*same).agreement == 1.0
    assert canonical_json('{"big": 9007199254740993, "a": 1.0}') == canonical_json('{"a": 1, "big": 9007199254740993}')


@pytest.mark.parametrize(
    ("documents", "strategy", "winner", "agreement"),
    [
        ((A, B, A), MAJORITY, 0, 2 / 3),
        ((B, A, A), MAJORITY, 1, 2 / 3),
        ((A, B, C), MAJORITY, 0, 1 / 3),
        ((B, A, A, B), MAJORITY, 0, 2 / 4),
        ((A, None, None), MAJORITY, 0, 1 / 3),
        ((A, A, B), STRICT, 0, 2 / 3),
        ((A, A, A), UNANIMITY, 0, 1.0),
    ],
)
def test_the_winner_is_what_the_strategy_says(documents, strategy, winner, agreement):
    found = count(*documents, strategy=strategy)
    assert (found.winner, found.agreement, found.objection) == (winner, agreement, "")


@pytest.mark.parametrize(
    ("documents", "fields", "objection"),
    [
        ((A, A, B, B), {"strategy": STRICT}, "2 of 4 votes: more than half"),
        ((A, A, None, None), {"strategy": STRICT}, "2 of 4 votes"),
        ((A, A, B), {"strategy": UNANIMITY}, "replica 2 differs from replica 0 at 'x'"),
        ((B, A, A), {"strategy": UNANIMITY}, "replica 0 differs from replica 1 at 'x'"),
        ((A, A, None), {"strategy": UNANIMITY}, "1 of 3 replicas abstain"),
        ((A, A, B), {"min_agreement": 0.7}, "agreement is 0.667: min_agreement is 0.7"),
        ((None, A, B), {"strategy": UNANIMITY}, "replica 2 differs from replica 1 at 'x'"),
        (('{"a": {"b": 1}}', '{"a": {}}'), {"strategy": UNANIMITY}, "at 'a.b'"),
    ],
)
def test_without_consensus_the_objection_says_why(documents, fields, objection):
    found = count(*documents, **fields)
    assert (found.winner, found.agreement) == (None, 0.0)
    assert objection in found.objection


@pytest.mark.parametrize(
    ("documents", "merged", "agreement"),
    [
        ((A, B, C), {"x": 1, "y": [1]}, 1 / 3),
        (('{"x": 1, "y": 1}', '{"x": 1, "y": 2}', '{"x": 2, "y": 2}'), {"x": 1, "y": 2}, 2 / 3),
        (('{"x": {"y": 1}}', '{"x": {"y": 1}}', '{"x": 0}'), {"x": {"y": 1}}, 2 / 3),
        (('{"x": 1}', "{}", "{}"), {}, 2 / 3),
        (('{"x": 1}', '{"x": 1}', "{}"), {"x": 1}, 2 / 3),
        (("[1, 2]", "[1, 2]", "[2, 1]"), [1, 2], 2 / 3),
        (('{"x": 1}', None, '{"x": 1}'), {"x": 1}, 2 / 3),
        (("{}", "{}"), {}, 1.0),
    ],
)
def test_fields_are_voted_on_one_by_one(documents, merged, agreement):
    found = count(*documents, strategy=FIELDS)
    assert (json.loads(found.merged_json), found.agreement) == (merged, agreement)


DOCUMENTS = st.sampled_from([A, B, C, '{"x": 1, "y": [2]}', "{}"])
VOTINGS = st.builds(
    Voting,
    n=st.integers(1, 7),
    strategy=st.sampled_from(Strategy),
    min_agreement=st.sampled_from([0.0, 0.3, 0.5, 0.51, 1.0]),
)


def outcome(found):
    return (found.objection != "", found.merged_json or (found.winner is not None and found.groups[0].key))


@given(VOTINGS, st.data())
def test_what_is_decided_stays_whatever_comes(voting, data):
    documents = data.draw(st.lists(st.none() | DOCUMENTS, min_size=voting.n, max_size=voting.n))
    order = data.draw(st.permutations(range(voting.n)))
    for seen in range(voting.n + 1):
        ended = order[:seen]
        so_far = {index: documents[index] for index in ended if documents[index] is not None}
        if so_far and is_decided(so_far, seen - len(so_far), voting):
            now = count_votes(so_far, voting)
            later = count_votes(replicas_of(*documents), voting)
            assert outcome(now) == outcome(later)
            assert later.agreement >= now.agreement
            return


@given(VOTINGS, st.data())
def test_a_winner_has_the_agreement_that_is_asked_for(voting, data):
    documents = data.draw(st.lists(DOCUMENTS, min_size=1, max_size=voting.n))
    found = count_votes(replicas_of(*documents), voting)
    if not found.objection:
        assert found.agreement >= voting.min_agreement
        assert found.winner is not None or found.merged_json
