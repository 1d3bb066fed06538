"""Normalization whose time is in proportion to the text."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.text.normalization import (
    _FIRST_COMBINING,
    _LAST_COMBINING,
    MAX_COMBINING_RUN,
    is_reordered,
    normalize_nfkc,
)
from pagantic_common.domain.text.scoring import MAX_QUERY_CHARS, query_terms, split_terms


def longest_run(text):
    longest = run = 0
    for char in unicodedata.normalize("NFKD", text[:100_000]):
        run = run + 1 if unicodedata.combining(char) else 0
        longest = max(longest, run)
    return longest


@given(st.text(max_size=200))
def test_ordinary_text_is_in_nfkc(text):
    if longest_run(text) <= MAX_COMBINING_RUN:
        assert normalize_nfkc(text) == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u0344", "\u0316\u0301\u0345", "\U0001e8d0\U0001d165"])
def test_a_run_of_combining_marks_is_parted(marks):
    normalized = normalize_nfkc("e" + marks * 20_000 + " end")
    assert longest_run(normalized) <= 3 * MAX_COMBINING_RUN  # a mark may stand for a few
    assert normalized.endswith(" end")


def test_no_character_outside_the_range_that_is_looked_at_is_reordered():
    outside = (*range(_FIRST_COMBINING), *range(_LAST_COMBINING, sys.maxunicode + 1))
    assert not [hex(code) for code in outside if not 0xD800 <= code < 0xE000 and is_reordered(chr(code))]


@given(st.text(alphabet="ab\u00e9\u0301 \n", max_size=30), st.integers(1, 400))
def test_terms_of_a_long_text_are_those_of_its_words(text, times):
    assert split_terms(f"{text} " * times) == split_terms(text) * times


def test_of_a_long_query_the_end_counts():
    assert query_terms("early " + "x " * MAX_QUERY_CHARS + "late") == ["x", "late"]
