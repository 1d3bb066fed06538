from __future__ import annotations

import json
import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from services.tools.core.builtin.json_query import MAX_DOCUMENT_BYTES, query_json

PEOPLE = '{"people": [{"name": "Ann", "age": 31}, {"name": "Bo", "age": 12}]}'


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("people[0].name", '"Ann"'),
        ("people[?age > `30`].name", '["Ann"]'),
        ("people[].{n: name}", '[{"n":"Ann"},{"n":"Bo"}]'),
        ("length(people)", "2"),
        ("nobody", "null"),
    ],
)
def test_query_finds_values(query, found):
    assert query_json(PEOPLE, query) == found


@pytest.mark.parametrize(
    ("document", "query", "problem"),
    [
        ("{", "a", "not JSON"),
        ("{}", "a[", "not valid"),
        ("{}", "nope(@)", "not valid"),
        ("{}", "length(`1`)", "not valid"),
        ("{}", "a" * 501, "at most 500"),
        ('"' + "a" * MAX_DOCUMENT_BYTES + '"', "@", "at most 65536"),
        ('"' + "ä" * 32_768 + '"', "@", "65538 bytes, at most 65536"),
        ("{}", "!" * 499 + "a", "nested too deeply"),
        ('"1e999"', "to_number(@)", "does not fit"),
        ("[" * 30_000 + "]" * 30_000, "@", "nested too deeply"),
    ],
)
def test_bad_query_is_refused_with_its_reason(document, query, problem):
    with pytest.raises(InvalidRequest, match=problem):
        query_json(document, query)


@pytest.mark.parametrize(
    "query",
    [
        " | ".join(["[@,@][]"] * 40),
        " | ".join(["[@,@]"] * 60),
        " | ".join(["[@,@]"] * 60) + " | to_string(@)",
        " | ".join(["map(&[@,@,@,@,@], @)[]"] * 15),
        "map(&" * 10 + "[@,@]" + ",[@,@])" * 10,
    ],
)
def test_query_that_multiplies_its_input_is_stopped(query):
    started = time.process_time()
    with pytest.raises(InvalidRequest, match="too much"):
        query_json('["' + '\\"' * 1000 + '"]', query)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("character", ["x", "\N{PILE OF POO}"])
def test_a_join_is_checked_before_it_is_made(character):
    document = json.dumps({"s": character * 8000, "l": [""] * 8000}, separators=(",", ":"), ensure_ascii=False)
    assert len(document.encode()) <= MAX_DOCUMENT_BYTES
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="too much"):
            query_json(document, "join(s, l)")
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_join_within_the_budget_is_made():
    assert query_json(PEOPLE, "join(', ', people[].name)") == '"Ann, Bo"'


def test_half_a_character_is_replaced_because_it_cannot_be_sent():
    assert query_json('["\\ud800"]', "@") == '["?"]'
    with pytest.raises(InvalidRequest, match="not valid") as caught:
        query_json("{}", 'length(`"\ud800"`, `1`, \ud800)')
    caught.value.failure.message.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(json_values)
def test_identity_query_gives_the_document_back(value):
    assert json.loads(query_json(json.dumps(value), "@")) == value


@pytest.mark.filterwarnings("ignore:deprecated string literal syntax")
@given(st.text(alphabet="ab.[]*?@&|!=<>`'\"{}(),:0 -lengthsortmap", max_size=40))
def test_any_query_gives_json_or_a_reason(query):
    with suppress(InvalidRequest):
        json.loads(query_json(PEOPLE, query))
