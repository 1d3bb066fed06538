"""The header of a GGUF file: what is in it is read, and no file makes the reader fail in another way than it says."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.models.gguf_header import MAX_METADATA_BYTES, MAX_TEXT_BYTES, NotGguf, read_gguf_header
from pagantic_common.models.kinds import (
    CHAT_CAPABILITIES,
    EMBED,
    SCORE_PAIRS,
    TEXT_CAPABILITIES,
    capabilities_of,
    trained_window,
)
from services.inference.core.gguf import gguf_parts
from tests.support.sample_models import METADATA, model_bytes

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
NUMBERS = st.integers(0, 2**32 - 1)
ARRAYS = st.lists(TEXTS, min_size=1, max_size=5) | st.lists(st.integers(-9, 9), min_size=1, max_size=5)


def read(path, content):
    path.write_bytes(content)
    return read_gguf_header(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("headers") / "model.gguf"


@given(st.dictionaries(TEXTS, TEXTS | NUMBERS | st.booleans() | ARRAYS, max_size=8))
def test_single_values_are_read_as_text_and_arrays_are_left_out(path, metadata):
    expected = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in metadata.items()}
    arrays = {key for key, value in metadata.items() if isinstance(value, list)}
    found = read(path, b"".join(gguf_parts(metadata, {})))
    assert found == {key: value for key, value in expected.items() if key not in arrays}


@given(st.data())
def test_a_file_that_is_cut_in_its_header_is_refused(path, data):
    header = b"".join(gguf_parts(METADATA, {})).rstrip(b"\0")
    cut = data.draw(st.integers(0, len(header) - 1))
    with pytest.raises(NotGguf):
        read(path, header[:cut])


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(path, content):
    for content_of_a_kind in (content, b"GGUF\3\0\0\0" + bytes(8) + content):
        try:
            read(path, content_of_a_kind)
        except NotGguf:
            continue


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<html>no such page</html>", "does not begin"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, MAX_TEXT_BYTES + 1), "bytes of a text"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 5, 2**40), "elements"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 5, 2**20), "ends inside"),
    ],
)
def test_a_hostile_header_is_refused_with_its_reason(path, content, words):
    with pytest.raises(NotGguf, match=words):
        read(path, content)


def test_a_chat_model_says_its_window_and_what_it_can_do(path):
    header = read(path, model_bytes(1))
    assert trained_window(lambda key: header.get(key, "")) == 4096
    assert capabilities_of(lambda key: header.get(key, "")) == CHAT_CAPABILITIES


@pytest.mark.parametrize(
    ("metadata", "capabilities"),
    [
        ({"llama.pooling_type": "1"}, (EMBED,)),
        ({"llama.pooling_type": "4"}, (SCORE_PAIRS,)),
        ({"llama.pooling_type": "0"}, TEXT_CAPABILITIES),
        ({"llama.attention.causal": "false"}, ()),
        ({"tokenizer.chat_template": "x"}, CHAT_CAPABILITIES),
    ],
)
def test_what_a_model_can_do_follows_from_its_metadata(metadata, capabilities):
    assert capabilities_of(lambda key: {"general.architecture": "llama", **metadata}.get(key, "")) == capabilities


def test_metadata_are_bounded_as_a_whole(path):
    text = "x" * MAX_TEXT_BYTES
    few = {str(number): text for number in range(2)}
    assert read(path, b"".join(gguf_parts(few, {}))) == few
    many = {str(number): text for number in range(MAX_METADATA_BYTES // MAX_TEXT_BYTES)}
    with pytest.raises(NotGguf, match="the limit is"):
        read(path, b"".join(gguf_parts(many, {})))
