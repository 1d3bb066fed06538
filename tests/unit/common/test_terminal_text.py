"""No text of a model or tool can steer a terminal, and lines break between words."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.text.terminal import WordWrap, plain_json, plain_text

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
HOSTILE = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("\x1b\x9b\x9d\x07\x9c\\[]mP;31\n\t\r\b ")), max_size=200
)


@given(HOSTILE)
def test_no_control_character_but_newline_and_tab_is_left(text):
    assert not CONTROL.search(plain_text(text))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from("\n\t"), max_size=200))
def test_text_without_control_characters_stays_as_it_is(text):
    assert plain_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x9b2Jgone", "gone"),
        ("one\r\ntwo\x08\x7f", "one\ntwo"),
        ("\x1b]0;never ended", "0;never ended"),
        ("[red]not markup[/red]", "[red]not markup[/red]"),
    ],
)
def test_a_control_sequence_goes_and_its_text_stays(text, shown):
    assert plain_text(text) == shown


@pytest.mark.parametrize("begin", ["\x1b]", "\x90", "\x9b", "\x1b[", "\x1b", "\x9d0;"])
def test_sequences_that_never_end_do_not_take_the_square_of_their_number(begin):
    assert plain_text(begin * 500_000).isprintable()


@given(st.recursive(HOSTILE, lambda inner: st.lists(inner, max_size=3)))
def test_json_keeps_its_value_when_its_control_characters_are_escaped(value):
    text = plain_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(text) == value
    assert all(character.isprintable() or character in "\n\t" for character in text)


def test_json_shows_what_hides_in_a_text():
    hidden = json.dumps({"to": "a\u202eb\u200b@x.org\u00a0\U000e0041\ufe01\u3164\u2800"}, ensure_ascii=False)
    assert plain_json(hidden) == r'{"to": "a\u202eb\u200b@x.org\u00a0\udb40\udc41\ufe01\u3164\u2800"}'
    assert plain_json('{"to": "Zoë 語 🙂"}') == '{"to": "Zoë 語 🙂"}'


@given(st.lists(st.text("ab \n語", max_size=12), max_size=20), st.integers(1, 30))
def test_wrapping_changes_spaces_into_line_breaks_and_nothing_else(pieces, width):
    wrap = WordWrap(width)
    written = "".join(map(wrap.feed, pieces)) + wrap.flush()
    assert written.split() == "".join(pieces).split()
    assert written == "".join(map((other := WordWrap(width)).feed, ["".join(pieces)])) + other.flush()


@given(st.lists(st.text("abc", min_size=1, max_size=10), min_size=1, max_size=30))
def test_no_line_is_longer_than_the_width_where_words_are_not(words):
    wrap = WordWrap(20)
    written = wrap.feed(" ".join(words)) + wrap.flush()
    assert all(len(line) <= 20 for line in written.split("\n"))


def test_indentation_and_long_words_stay_whole():
    wrap = WordWrap(10)
    assert wrap.feed("  indented\nabcdefghijklmno pq") + wrap.flush() == "  indented\nabcdefghijklmno\npq"
