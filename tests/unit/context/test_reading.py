"""Files become documents: pure parts of their reading."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from services.context.adapters.reading.file_work import add_properties
from services.context.core.outline import Heading
from services.context.core.reading.bounds import ReadingBounds
from services.context.core.reading.draft import MAX_HEADINGS, TextDraft
from services.context.core.reading.files import FolderSelection
from services.context.core.reading.formats import Format, detect
from services.context.core.reading.markdown import read_markdown
from services.context.core.reading.plain_text import clean, decode_marked, is_text
from services.context.core.reading.records import read_json, read_json_lines, read_table
from services.context.core.reading.selection import is_selected, split_folder_path

BOUNDS = ReadingBounds(max_bytes=1_000_000, max_chars=100_000)
WORDS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(st.text())
def test_a_cleaned_text_has_one_kind_of_line_end_and_can_be_stored(text):
    cleaned = clean(text)
    assert "\r" not in cleaned
    assert "\0" not in cleaned
    cleaned.encode()  # raises for a half of a surrogate pair
    assert clean(cleaned) == cleaned


def test_everything_but_line_ends_and_nul_stays_as_it_is():
    assert clean("a\r\nb\rc\0\t\f \u00a0\u200b\ufeff") == "a\nb\nc\t\f \u00a0\u200b\ufeff"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-8"])
@given(text=st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: text[0] not in "\ufeff\0"))
def test_a_byte_order_mark_names_the_encoding(encoding, text):
    assert decode_marked(text.encode(encoding)) == text


def test_bytes_that_are_not_what_their_mark_says_are_not_decoded():
    assert decode_marked(b"\xff\xfea") is None
    assert decode_marked(b"gr\xfc\xdfe") is None


def test_a_text_has_few_control_characters():
    assert is_text("\x1b[1mtitle\x1b[0m\f\n" * 10)
    assert is_text("word " * 100 + "\0")
    assert not is_text("\0word")


@given(st.lists(st.tuples(st.integers(1, 6), WORDS, st.text(st.characters(categories=["L"]))), max_size=8))
def test_headings_point_at_their_lines(sections):
    text = "".join(f"{'#' * level} {title}\n\n{body}\n\n" for level, title, body in sections)
    read = read_markdown(text)
    assert read.content == text
    assert [(heading.level, heading.title) for heading in read.outline.headings] == [one[:2] for one in sections]
    for heading in read.outline.headings:
        assert text[heading.start :].startswith(f"{'#' * heading.level} {heading.title}\n")


@given(st.text(st.sampled_from("#=-`~> \n\tab*[]()<!\u2028\x0b"), max_size=200))
def test_any_markdown_has_an_outline_within_it(text):
    cleaned = clean(text)
    read = read_markdown(cleaned)
    starts = [heading.start for heading in read.outline.headings]
    assert starts == sorted(set(starts))
    for start in starts:
        assert start == 0 or cleaned[start - 1] == "\n"


def test_code_and_front_matter_have_no_headings():
    text = "---\ntitle: x\n---\n# [A *b*](http://c) `d`\n\n```sh\n# no\n```\n\n    # no\n\nUnder\n=====\n"
    assert read_markdown(text).outline.headings == (
        Heading(text.index("# [A"), 1, "A b d"),
        Heading(text.index("Under"), 1, "Under"),
    )
    assert read_markdown(text).title == "A b d"


def test_an_outline_is_bounded():
    assert len(read_markdown("# a\n" * (MAX_HEADINGS + 5)).outline.headings) == MAX_HEADINGS


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6))
def test_pages_and_headings_of_a_draft_are_where_they_are(pages):
    draft = TextDraft(BOUNDS)
    for title, text in pages:
        draft.start_page()
        draft.add_heading(1, title)
        draft.add_block(text)
    read = draft.finish()
    assert len(read.outline.page_starts) == len(pages)
    for number, (title, text) in enumerate(pages):
        start = read.outline.page_starts[number]
        assert read.content[start:].startswith(f"# {title}\n\n{text}")
        assert read.outline.headings[number].start == start
        assert read.outline.page_at(read.content.index(text, start)) == number + 1


def test_an_empty_page_counts_and_too_long_a_text_is_refused():
    draft = TextDraft(ReadingBounds(100, 20))
    for text in ("one", "", "three"):
        draft.start_page()
        draft.add_block(text)
    read = draft.finish()
    assert (read.content, read.outline.page_at(len(read.content) - 1)) == ("one\n\nthree", 3)
    with pytest.raises(InvalidRequest, match="characters or more, at most 20 are allowed: split the file"):
        draft.add_block("x" * 20)


def test_json_is_a_line_for_each_value_with_its_path():
    text = '{"server": {"names": ["a", "b"], "port": 80}, "tags": [], "": null}'
    lines = ["server.names[0]: a", "server.names[1]: b", "server.port: 80", "tags: []", "null"]
    assert read_json(text, BOUNDS).content.split("\n") == lines
    assert read_json('"word"', BOUNDS).content == "word"
    assert read_json_lines('{"a": 1}\n\n{"a": 2}\n', BOUNDS).content == "[0].a: 1\n[1].a: 2"


@given(JSON_VALUES)
def test_all_values_of_json_are_in_its_text(value):
    content = read_json(json.dumps(value), BOUNDS).content
    for leaf in leaves(value):
        assert clean(leaf).rstrip() in content


def leaves(value):
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in leaves(child)]
    if isinstance(value, list):
        return [leaf for child in value for leaf in leaves(child)]
    return [value if isinstance(value, str) else json.dumps(value)]


@pytest.mark.parametrize("text", ["{", "[" * 5000, '{"a": NaN}', "// a comment\n{}"])
def test_what_is_not_json_stays_as_it_is(text):
    assert read_json(text, BOUNDS).content == text
    assert read_json_lines(text, BOUNDS).content == text


@given(
    st.lists(CELLS, min_size=2, max_size=4, unique=True), st.lists(st.lists(CELLS, min_size=2, max_size=4), max_size=5)
)
def test_a_row_of_a_table_has_the_names_of_its_columns(names, rows):
    written = io.StringIO()
    csv.writer(written).writerows([names, *rows])
    lines = read_table(written.getvalue(), BOUNDS).content.split("\n")
    named = [*names, "", "", ""]
    if rows and max(",;\t|", key=written.getvalue().split("\n")[0].count) == ",":
        pairs = [[f"{name}: {cell}" if name else cell for name, cell in zip(named, row, strict=False)] for row in rows]
        assert lines == ["; ".join(row) for row in pairs]


def test_tables_have_the_delimiter_of_their_first_line():
    assert read_table("name;price\ntea;3,50\n\n;4\n", BOUNDS).content == "name: tea; price: 3,50\nprice: 4"
    assert read_table("a\tb\nx\t\n", BOUNDS).content == "a: x"
    assert read_table("alone,here", BOUNDS).content == "alone; here"


@pytest.mark.parametrize(
    ("name", "media_type", "head", "found"),
    [
        ("a.txt", "", b"%PDF-1.7", Format.PDF),
        ("a.pdf", "", b"\n%PDF-1.7", Format.PDF),
        ("a.pdf", "application/pdf", b"words", Format.TEXT),
        ("a.md", "", b"words", Format.MARKDOWN),
        ("a.md", "text/plain; charset=utf-8", b"words", Format.TEXT),
        ("A.HTML", "", b"words", Format.HTML),
        ("page", "", b"<!-- x --> <!DOCTYPE html>", Format.HTML),
        ("page.py", "", b"<html>", Format.TEXT),
        ("a.tsv", "", b"a\tb", Format.CSV),
        ("a.docx", "", b"PK\x03\x04", Format.ZIP),
        ("a.txt", "", b"\x1f\x8b\x08", Format.GZIP),
        ("a", "application/unknown", b"", Format.TEXT),
    ],
)
def test_the_content_tells_the_format_then_the_media_type_then_the_name(name, media_type, head, found):
    assert detect(name, media_type, head) is found


@pytest.mark.parametrize("head", [b"\x89PNG\r\n\x1a\n", b"\xd0\xcf\x11\xe0", b"\x7fELF", bytes(257) + b"ustar"])
def test_a_format_that_is_not_read_is_refused_with_the_next_step(head):
    with pytest.raises(InvalidRequest, match=r"the file is an? .*\(text, Markdown, HTML"):
        detect("a.md", "text/markdown", head)


def test_properties_are_added_where_the_caller_names_none():
    assert add_properties("", {"title": "", "media_type": "text/plain"}) == '{"media_type":"text/plain"}'
    assert add_properties('{"title": 1.0}', {"title": "t"}) == '{"title": 1.0}'
    full = json.dumps({"a": "x" * 16_370})
    assert add_properties(full, {"title": "too much"}) == full
    with pytest.raises(InvalidRequest, match="not a JSON object"):
        add_properties("[]", {})


def test_a_selection_knows_the_sources_of_its_files():
    selection = FolderSelection("docs", "in/", "in/*.md")
    assert [is_selected(selection, source) for source in ("docs/in/a.md", "docs/in/b/c.md")] == [True, True]
    for source in ("docs/in/a.txt", "docs/into/a.md", "docs/a.md", "other/in/a.md"):
        assert not is_selected(selection, source)
    assert is_selected(FolderSelection("docs"), "docs/a")


@pytest.mark.parametrize("path", ["..", "a/../b", "/a", "a\\b", "a\0", "a/" * 40, "x" * 2000])
def test_a_path_that_could_lead_elsewhere_is_refused(path):
    with pytest.raises(InvalidRequest, match="path"):
        split_folder_path(path)
