import json
from random import Random

import pytest

from tests.bench.scenarios import SCENARIOS, _is_quote, _is_ticket

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
TICKET = {
    "title": "Login fails",
    "severity": "high",
    "component": "frontend",
    "reporter": {"name": "Vera", "team": "support", "is_on_call": True},
    "impact": {"affected_users": 12, "is_data_lost": False},
    "steps": [{"action": "restart it", "owner": "support", "minutes": minutes} for minutes in (5, 9)],
    "labels": ["outage"],
}


def opening(query):
    return query.messages[0][1][:20] if query.messages else query.text[:20]


def run_of(name, seed="1"):
    return BY_NAME[name].make(Random(seed), 16)  # noqa: S311


@pytest.mark.parametrize("name", BY_NAME)
def test_a_run_has_as_many_queries_as_asked_and_repeats_with_its_seed(name):
    assert len(run_of(name).queries) == 16
    assert run_of(name) == run_of(name)


@pytest.mark.parametrize("name", ["chat", "schema", "extract"])
def test_prompts_that_share_nothing_differ_from_their_first_words(name):
    openings = [opening(query) for seed in "123" for query in run_of(name, seed).queries]
    assert len(set(openings)) == len(openings)


@pytest.mark.parametrize("name", ["shared", "shared-cold", "shared-steady"])
def test_shared_prompts_share_their_system_message_and_nothing_else(name):
    queries = run_of(name).queries
    assert len({query.messages[0] for query in queries}) == 1
    assert len({query.messages[1][1][:25] for query in queries}) == 16


def test_only_the_steady_system_message_stays_the_same_from_run_to_run():
    changing = {
        name: opening(run_of(name, "1").queries[0]) != opening(run_of(name, "2").queries[0]) for name in BY_NAME
    }
    assert {name for name, changes in changing.items() if not changes} == {"shared-steady", "vote", "vote-long"}


def test_a_ticket_is_judged_by_the_schema():
    (query, *_) = run_of("schema").queries
    assert _is_ticket(query, json.dumps(TICKET))
    assert not _is_ticket(query, json.dumps(TICKET | {"severity": "huge"}))
    assert not _is_ticket(query, json.dumps(TICKET)[:-1])


def test_a_quote_is_judged_by_the_prompt():
    (query, *_) = run_of("extract").queries
    quoted = query.text.split('"')[1]
    assert _is_quote(query, quoted[40:])
    assert not _is_quote(query, quoted[40:80] + " or not")
