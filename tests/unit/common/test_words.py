from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.text.words import MAX_WORD_CHARS, split_words


def words(text):
    return [text[start:end] for start, end in split_words(text)]


def test_words_are_runs_of_letters_digits_and_marks():
    assert words("The (red) hat_2, 9 € - cafe\u0301!") == ["The", "red", "hat_2", "9", "cafe\u0301"]
    assert words(" -- \u200f") == []


def test_letters_of_scripts_without_spaces_are_words_with_their_marks():
    assert words("漢字 abc字") == ["漢", "字", "abc", "字"]
    assert words("ก\u0e31น") == ["ก\u0e31", "น"]


def test_a_long_run_is_several_words():
    assert [len(word) for word in words("a" * 100)] == [MAX_WORD_CHARS, MAX_WORD_CHARS, 20]


@given(st.text())
def test_words_come_in_order_and_leave_no_letter_out(text):
    spans = split_words(text)
    assert all(start < end for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    inside = {position for start, end in spans for position in range(start, end)}
    assert not any(char.isalnum() for position, char in enumerate(text) if position not in inside)
