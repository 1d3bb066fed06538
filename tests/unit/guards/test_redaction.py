"""Texts that stream through a guard: any division gives the same text, and nothing of a finding gets out."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.guards import redaction
from pagantic_common.guards.plugin import Finding
from pagantic_common.guards.redaction import STRIDE, TextStream, TooLongFindingError, merge, redact
from services.orchestrator.adapters.guards import length, personal_data, secrets, topics

KEY = "AKIAIOSFODNN7EXAMPLE"
KEY_LINES = "MIIEowIBAAKCAQEA\n" * 40
PRIVATE_KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINES}-----END RSA PRIVATE KEY-----"
SECRETS = (KEY, "ghp_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij", "https://bob:hunter22@db.example/x", PRIVATE_KEY)
PERSONAL = ("bob@example.com", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "536-90-4399")
WORDS = st.text("abcdefghij ,.\n", max_size=90)
PIECES = st.lists(st.integers(1, 40), max_size=60)


def texts_with(planted):
    """Texts of words, with planted parts between blanks."""
    part = st.one_of(WORDS, st.sampled_from(planted).map(lambda one: f" {one} "))
    return st.lists(part, max_size=12).map("".join)


def cut(text, sizes):
    """Cut a text into pieces of these sizes; the rest is the last piece."""
    for size in sizes:
        yield text[:size]
        text = text[size:]
    yield text


def stream(guard, pieces, window=None):
    """Return the parts that get out, in order, and the kinds of what was found."""
    through = TextStream(guard.traits.window if window is None else window)
    out, kinds = [], []

    def settle():
        while (seen := through.next_window()) is not None:
            redacted = through.settle(guard.find(seen.text, seen.start))
            out.append(redacted.text)
            kinds.extend(redacted.kinds)

    for piece in pieces:
        through.add(piece)
        settle()
    through.end()
    settle()
    return out, kinds


def whole(guard, text):
    return redact(text, guard.find(text, 0))


SECRETS_GUARD, PERSONAL_GUARD = secrets.make_guard({}), personal_data.make_guard({})
TOPICS_GUARD = topics.make_guard({"words": ["acid", "big bad jig"]})
GUARDS = (
    (SECRETS_GUARD, texts_with(SECRETS)),
    (PERSONAL_GUARD, texts_with(PERSONAL)),
    (TOPICS_GUARD, texts_with(("Acid", "big  bad jig", "jig"))),
)


@pytest.mark.parametrize("case", GUARDS, ids=("secrets", "personal_data", "topics"))
@given(data=st.data())
def test_a_text_in_any_pieces_is_redacted_as_the_whole_text_is(case, data):
    guard, texts = case
    text, sizes = data.draw(texts), data.draw(PIECES)
    out, kinds = stream(guard, cut(text, sizes))
    expected = whole(guard, text)
    assert "".join(out) == expected.text
    assert tuple(kinds) == expected.kinds


class Odd:
    """Finds whatever a pattern without bounds finds, also what changes as more text comes."""

    def __init__(self, pattern):
        self._pattern = re.compile(pattern)

    def find(self, text, _start):
        return [Finding(one.start(), one.end(), "ODD") for one in self._pattern.finditer(text)]


@given(
    st.sampled_from(["a+b", "[ab]{3}", "a.{0,40}b", "ab$", "^a"]),
    st.text("ab ", max_size=400),
    PIECES,
    st.integers(1, 80),
)
def test_the_pieces_of_a_text_never_matter_whatever_a_guard_finds(pattern, text, sizes, window):
    guard = Odd(pattern)
    assert "".join(stream(guard, cut(text, sizes), window)[0]) == "".join(stream(guard, [text], window)[0])


@given(st.sampled_from(SECRETS), WORDS, WORDS, PIECES)
def test_no_beginning_of_a_secret_gets_out_at_any_time(secret, before, after, sizes):
    shown = ""
    for part in stream(SECRETS_GUARD, cut(f"{before} {secret} {after}", sizes))[0]:
        shown += part
        for size in range(8, len(secret) + 1):
            hidden = secret if "://" not in secret else "hunter22"
            assert hidden[:size] not in shown


def test_text_gets_out_before_the_end():
    out, _ = stream(TOPICS_GUARD, ["word "] * 100)
    assert len(out) > 3
    assert "".join(out) == "word " * 100


def test_a_guard_that_judges_the_whole_lets_nothing_out_before_the_end():
    out, _ = stream(TOPICS_GUARD, ["word "] * 100, window=0)
    assert out == ["word " * 100]


def test_a_secret_without_an_end_is_held_back_and_not_let_out():
    out, kinds = stream(SECRETS_GUARD, ["-----BEGIN PRIVATE KEY-----\n", *["MIIEowIBAAKCAQEA\n"] * 50])
    assert "".join(out) == "[redacted: PRIVATE_KEY]"
    assert kinds == ["PRIVATE_KEY"]


def test_a_finding_without_an_end_is_refused_when_too_much_is_held(monkeypatch):
    held = 20_000
    monkeypatch.setattr(redaction, "MAX_HELD", held)
    with pytest.raises(TooLongFindingError):
        stream(SECRETS_GUARD, ["-----BEGIN PRIVATE KEY-----\n", "MIIEowIBAAKCAQEA\n" * (held // 16)])


def test_a_finding_that_has_not_ended_is_told_as_soon_as_it_has_begun():
    through = TextStream(1)
    through.add("x " * STRIDE)
    guard = length.make_guard({"max_chars": 10})
    seen = through.next_window()
    settled = through.settle(guard.find(seen.text, seen.start))
    assert (settled.text, settled.held) == ("x " * 5, "TOO_LONG")


@given(st.lists(st.tuples(st.integers(-5, 60), st.integers(-5, 60))), st.integers(0, 50))
def test_merged_findings_are_in_order_within_the_text_and_apart(spans, size):
    merged = merge([Finding(start, end, "K") for start, end in spans], size)
    assert all(0 <= one.start < one.end <= size for one in merged)
    assert all(left.end <= right.start for left, right in itertools.pairwise(merged))
    covered = {place for start, end in spans for place in range(max(0, start), min(size, end))}
    assert {place for one in merged for place in range(one.start, one.end)} == covered


def test_a_large_piece_is_not_copied_for_each_window_of_it():
    guard, text = PERSONAL_GUARD, "some words " * 2000
    through = TextStream(guard.traits.window)
    through.add(text)
    out, copied = [], 0
    while (seen := through.next_window()) is not None:
        before = through._text
        out.append(through.settle(guard.find(seen.text, seen.start)).text)
        if through._text is not before:
            copied += len(through._text)
    assert copied <= len(text)
    assert "".join(out) + through.held == text
