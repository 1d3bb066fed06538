from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pagantic_common.domain.text.quoting import fenced


def test_a_long_run_does_not_make_a_long_fence():
    assert len(fenced("`" * 100_000)) < 100


@given(st.text(st.sampled_from("`~ab \n\t>-"), max_size=60))
def test_no_text_ends_its_fence(text):
    blocks = MarkdownIt("commonmark").parse(f"{fenced(text)}\n\nafter")
    assert [block.type for block in blocks] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert blocks[0].content == f"{text}\n"
