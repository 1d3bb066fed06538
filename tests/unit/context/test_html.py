"""HTML becomes text with headings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.context.adapters.reading.html import read_html
from services.context.core.reading.bounds import ReadingBounds

BOUNDS = ReadingBounds(1_000_000, 100_000)
TAGS = st.sampled_from(
    [
        "div",
        "p",
        "ul",
        "li",
        "table",
        "tr",
        "td",
        "th",
        "pre",
        "h1",
        "h2",
        "nav",
        "main",
        "b",
        "br",
        "script",
        "form",
        "section",
    ]
)
PAGES = st.recursive(
    st.sampled_from(("word", "two words", "")),
    lambda inner: st.builds(lambda tag, parts: f"<{tag}>{''.join(parts)}</{tag}>", TAGS, st.lists(inner, max_size=4)),
)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>a<b>b</b>\n c</p>d", "ab c\n\nd"),
        ("<h2>T <i>x</i></h2><p>a<br>b</p>", "## T x\n\na\nb"),
        ("<ul><li>a<li><p>b</ul>", "- a\n- b"),
        ("<nav>n<form>f</form></nav><header>h</header><main>m</main><footer>f</footer>", "m"),
        ("<article>one</article><article>two</article>", "one\n\ntwo"),
        ("<pre>a\n  b ```\n</pre>", "````\na\n  b ```\n````"),
        ("<pre>a<br>b<pre>c</pre><script>s</script><i>d</i></pre>e", "```\na\nbcd\n```\n\ne"),
        ("<table><tr><td>a<p>b</p><td><table><tr><td>in<td>side</table>c<td>d</table>", "a b\nin | side\n\nc\n\nd"),
        ("<p>a</p><!-- c --><template>t</template><p hidden>h</p>", "a"),
        ("just text &amp; more", "just text & more"),
        ("", ""),
    ],
)
def test_the_text_of_a_page_is_its_main_part(page, text):
    assert read_html(page, BOUNDS).content == text


@given(PAGES)
def test_any_page_has_its_headings_where_they_are(page):
    read = read_html(page, BOUNDS)
    for heading in read.outline.headings:
        assert read.content[heading.start :].startswith(f"{'#' * heading.level} {heading.title}")
    assert "script" not in read.content
