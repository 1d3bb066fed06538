import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.boundaries import find_quote
from pagantic_common.domain.text.citations import (
    ABSTENTION_JSON,
    AFFIRMATION_JSON,
    NOT_IN_SOURCES,
    CitationPolicy,
    Claim,
    find_problems,
    read_claims,
    schema_of,
    text_of,
)
from pagantic_common.grammar.schema_validator import build_validator
from tests.support.quote_samples import CUT_QUOTES, WHOLE_QUOTES

POLICY = CitationPolicy(max_claims=2, max_quote_words=6)
CUT = "must begin and end with whole words and numbers of source 1"
SOURCES = ("The red hat is in the box.", "Noon.", "---")


def answer(*claims, in_sources=True):
    found = {"in_sources": in_sources}
    if claims:
        found["claims"] = [{"source": source, "quote": quote, "text": "x"} for source, quote in claims]
    return found


@pytest.mark.parametrize(
    ("given_answer", "problems"),
    [
        (answer((1, "red hat is"), (2, "Noon")), []),
        (answer(in_sources=False), []),
        (answer((1, "red box is")), [("claims[0].quote", "must be copied without any change from source 1")]),
        (answer((2, "red hat is")), [("claims[0].quote", "must be copied without any change from source 2")]),
        (answer((1, "red hat")), [("claims[0].quote", "must have at least 3 words of source 1")]),
        (answer((2, "")), [("claims[0].quote", "must have at least 1 words of source 2")]),
        (answer((3, "---")), [("claims[0].quote", "must have at least 1 words of source 3")]),
        (
            answer((1, "The red hat is in the box")),
            [("claims[0].quote", "has 7 words, and must have at most 6 of source 1")],
        ),
        (answer((2, "Noon"), (4, "x")), [("claims[1].source", "there is no source 4, the last one is 3")]),
        (answer((1, "red hat is"), in_sources=False), [("claims", "must be left out when in_sources is false")]),
        (answer(), [("claims", "must not be empty when in_sources is true")]),
    ],
)
def test_claims_that_their_sources_do_not_bear_out_are_found(given_answer, problems):
    assert not list(build_validator(json.loads(schema_of(POLICY))).iter_errors(given_answer))
    assert list(find_problems(given_answer, SOURCES, POLICY)) == problems


@pytest.mark.parametrize(
    ("source", "quote", "is_whole"),
    [
        *CUT_QUOTES,
        *WHOLE_QUOTES,
        ("He is unhappy with the service.", "happy with the service", False),
        ("Balance rose to 12345 euros.", "Balance rose to 123", False),
        ("We like cafe\u0301 a lot.", "We like cafe", False),
        ("A smart is long now idea: art is long now.", "art is long now", True),
        ("漢字の\u3099文章です", "字の\u3099文", True),
        ("漢字の\u3099文章です", "漢字の", False),
    ],
)
def test_a_quote_that_cuts_a_word_or_a_number_is_found(source, quote, is_whole):
    assert quote in source
    problems = list(find_problems(answer((1, quote)), [source], POLICY))
    assert problems == [("claims[0].quote", CUT)] * (not is_whole)


def test_the_first_place_of_a_quote_is_one_that_cuts_no_word():
    assert find_quote("art is long now", "A smart is long now idea: art is long now.") == 26
    assert find_quote("a a", "aa aa a a") == 6
    assert find_quote("x", "aa") == -1


def test_a_model_that_may_not_abstain_still_does_without_sources():
    policy = CitationPolicy(may_abstain=False)
    assert list(find_problems(answer(in_sources=False), SOURCES, policy))
    for sources in ((), ("--", "\u200f"), ("a-" * 50,)):
        assert not list(find_problems(answer(in_sources=False), sources, policy))
    assert list(find_problems(answer(in_sources=False), ("--", "Noon."), policy))


@pytest.mark.parametrize("bounds", [{"max_claims": 33}, {"max_claims": -1}, {"max_quote_words": 5}])
def test_bounds_out_of_range_are_refused_by_name(bounds):
    with pytest.raises(InvalidRequest, match=rf"output\.citations\.{next(iter(bounds))} is"):
        CitationPolicy(**bounds).check("output.citations")


def test_claims_become_a_text_with_marks():
    claims = (Claim("Hats are red.", 2, "q"), Claim("It is noon.", 1, "q"))
    assert text_of(claims) == "Hats are red. [2] It is noon. [1]"
    assert text_of(()) == NOT_IN_SOURCES
    assert read_claims(ABSTENTION_JSON) == ()


@pytest.mark.parametrize(
    "text", ["", "no", "[]", "1", "null", AFFIRMATION_JSON, f"{AFFIRMATION_JSON}}}", '{"claims": []}']
)
def test_other_text_has_no_claims(text):
    assert read_claims(text) is None


@given(st.text(max_size=40), st.data())
def test_a_change_of_one_character_is_found(source, data):
    where = data.draw(st.integers(0, max(0, len(source) - 1)))
    changed = source[:where] + data.draw(st.characters(exclude_categories=["Cs"])) + source[where + 1 :]
    problems = list(find_problems(answer((1, changed)), [source], CitationPolicy()))
    assert problems or changed in source
