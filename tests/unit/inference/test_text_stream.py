from hypothesis import given
from hypothesis import strategies as st

from services.inference.core.decoding.output import TextStream


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    return [*pieces, data[start:]]


@given(st.text(max_size=60), st.lists(st.integers(0, 5), max_size=30))
def test_text_is_given_out_whole_however_its_bytes_arrive(text, sizes):
    stream = TextStream(())
    shown = [stream.feed(piece) for piece in cut(text.encode(), sizes)]
    assert "".join(shown) + stream.finish() == text
    assert not any("�" in piece for piece in shown if "�" not in text)


@given(
    st.text("abc", max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), max_size=30),
)
def test_nothing_of_a_stop_string_is_shown(text, stops, sizes):
    stream = TextStream(stops)
    shown = ""
    for piece in cut(text.encode(), sizes):
        if stream.is_stopped:
            break
        shown += stream.feed(piece)
    shown += stream.finish()
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert stream.is_stopped == any(stop in text for stop in stops)
    if stream.is_stopped:
        assert stream.found_stop in stops
        assert text.startswith(shown + stream.found_stop)


def test_bytes_that_can_never_be_a_character_are_replaced():
    stream = TextStream(())
    assert stream.feed(b"a\xff") + stream.feed(b"\xe2\x82") + stream.finish() == "a��"
