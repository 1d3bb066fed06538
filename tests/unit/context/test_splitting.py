from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.context.core.document import Document
from services.context.core.outline import Heading, Outline
from services.context.core.splitting import BLOCK_CHARS, Splitting, count_tokens, countable_words, split, uncovered

texts = st.text(alphabet=st.sampled_from("ab .\n#-\t漢字é\U0001f600") | st.characters(codec="utf-8"), max_size=400)


def contents(text, chunk_tokens, overlap_tokens=0, outline=None):
    document = Document("a", text, outline=outline or Outline())
    pieces = split(document, Splitting(chunk_tokens, overlap_tokens), dict.fromkeys(countable_words([text]), 1))
    return [text[piece.start : piece.end] for piece in pieces]


@given(texts, st.integers(4, 40), st.data())
def test_no_word_is_lost_and_pieces_keep_their_bounds(text, chunk_tokens, data):
    overlap_tokens = data.draw(st.integers(0, chunk_tokens // 4))
    outline = data.draw(st.sampled_from([Outline(), Outline((), (Heading(0, 1, "x"),))]))
    counts = dict.fromkeys(countable_words([text]), 1)
    pieces = split(Document("a", text, outline=outline), Splitting(chunk_tokens, overlap_tokens), counts)
    covered = [False] * len(text)
    for piece in pieces:
        part = text[piece.start : piece.end]
        assert part
        assert part == part.strip()
        assert count_tokens(part, counts) <= chunk_tokens or len(part) == 1
        covered[piece.start : piece.end] = [True] * len(part)
    assert all(known or char.isspace() for known, char in zip(covered, text, strict=True))
    assert uncovered(text, [(piece.start, piece.end) for piece in pieces]) == []
    starts = [piece.start for piece in pieces]
    assert starts == sorted(set(starts))


@given(st.text("ab ", max_size=30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple)))
def test_the_parts_outside_all_spans_are_found(text, spans):
    parts = uncovered(text, [(min(start, len(text)), min(end, len(text))) for start, end in spans])
    inside = {place for start, end in spans for place in range(start, end)}
    found = {place for start, end in parts for place in range(start, end)}
    outside = set(range(len(text))) - inside
    assert found <= outside
    assert not any(text[place].strip() for place in outside - found)
    assert all(text[start:end].strip() for start, end in parts)


def test_paragraphs_and_sentences_stay_whole_when_they_fit():
    text = "One two three.\n\nFour five six. Seven eight nine.\n\nTen."
    assert contents(text, 8) == ["One two three.", "Four five six. Seven eight nine.", "Ten."]
    assert contents(text, 4) == ["One two three.", "Four five six.", "Seven eight nine.", "Ten."]


def test_overlap_repeats_the_end_of_the_piece_before():
    first, second, *_ = contents("a b c d e f g h i j", 4, 1)
    assert first.endswith("d")
    assert second.startswith("d")


def test_a_long_text_is_split_in_blocks_that_end_with_words():
    text = "word " * BLOCK_CHARS
    found = contents(text, 100)
    assert {word for part in found for word in part.split()} == {"word"}
    assert sum(len(part.split()) for part in found) == BLOCK_CHARS


def test_long_words_count_by_their_characters():
    assert countable_words(["short " + "x" * 41]) == {"short"}
    assert count_tokens("x" * 41, {}) == 41
    assert countable_words(["漢字 a-b"]) == {"漢", "字", "a", "-", "b"}


def test_pieces_know_their_page_and_section():
    text = "# A\n\nalpha\n\n## B\n\nbeta\n\n# C\n\ngamma"
    headings = tuple(Heading(text.index(f"# {name}") - (name == "B"), 1 + (name == "B"), name) for name in "ABC")
    outline = Outline((0, text.index("beta")), headings)
    counts = dict.fromkeys(countable_words([text]), 1)
    pieces = split(Document("a", text, outline=outline), Splitting(4, 0), counts)
    found = {text[piece.start : piece.end].rsplit(maxsplit=1)[-1]: (piece.page, piece.heading) for piece in pieces}
    assert found["alpha"] == (1, "A")
    assert found["beta"] in ((1, "A > B"), (2, "A > B"))
    assert found["gamma"] == (2, "C")
    assert Outline.from_json(outline.to_json()) == outline
    assert Outline.from_json("{}") == Outline()


@given(
    st.lists(st.integers(0, 50), unique=True).map(sorted),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4)), unique_by=lambda one: one[0]).map(sorted),
    st.integers(0, 60),
)
def test_pages_and_sections_are_those_that_started_before(page_starts, levels, place):
    outline = Outline(tuple(page_starts), tuple(Heading(start, level, str(start)) for start, level in levels))
    assert outline.page_at(place) == sum(start <= place for start in page_starts)
    above = [outline.headings[index] for index in outline.section_at(place)]
    assert all(heading.start <= place for heading in above)
    assert [one.level for one in above] == sorted({one.level for one in above})
    if last := [heading for heading in outline.headings if heading.start <= place]:
        assert above[-1] == last[-1]
