from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.builtin.page_text import BodyReader, check_text_type, cut_to_json_bytes


@pytest.mark.parametrize(
    ("content_type", "found"),
    [
        ("text/html; charset=ISO-8859-1", ("text/html", "iso8859-1")),
        ("application/json", ("application/json", "utf-8")),
        ("application/problem+json", ("application/problem+json", "utf-8")),
        ("text/plain; charset=rot13", ("text/plain", "utf-8")),
        ("text/plain; charset=unicode_escape", ("text/plain", "utf-8")),
        ('text/plain; charset="\0"', ("text/plain", "utf-8")),
    ],
)
def test_the_type_and_the_encoding_are_read(content_type, found):
    assert check_text_type({"content-type": content_type}) == found


@pytest.mark.parametrize("headers", [{}, {"content-type": "image/png"}, {"content-type": "application/octet-stream"}])
def test_what_is_no_text_is_refused(headers):
    with pytest.raises(ToolFailed, match="not text"):
        check_text_type(headers)


@given(st.binary(max_size=300), st.integers(1, 200), st.integers(1, 50), st.sampled_from(["", "gzip", "deflate"]))
def test_a_body_is_kept_up_to_its_limit(body, max_bytes, chunk_bytes, content_encoding):
    pack = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[content_encoding]
    reader = BodyReader(content_encoding, max_bytes)
    wire = pack(body)
    for start in range(0, len(wire), chunk_bytes):
        if reader.is_truncated:
            break
        reader.add(wire[start : start + chunk_bytes])
    assert reader.is_truncated == (len(body) > max_bytes)
    assert reader.text("iso8859-1") == body[:max_bytes].decode("latin-1")


def test_a_character_that_the_limit_cuts_is_left_out():
    reader = BodyReader("", 2)
    reader.add("aüü".encode())
    assert reader.text("utf-8") == "a"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 100))
def test_a_text_is_cut_to_the_bytes_that_it_has_as_json(text, max_bytes):
    kept = cut_to_json_bytes(text, max_bytes)
    assert text.startswith(kept)
    assert not kept or len(dump_json(kept).encode()) <= max_bytes
