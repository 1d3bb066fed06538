"""Images in messages: what is taken, where they stand in the text, and how texts around them may change."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic.common.v1 import message_pb2
from pagantic_common.client import user_message
from pagantic_common.codec.messages import message_from_proto, message_to_proto
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.images import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    Image,
    file_of,
    image_of,
    join_parts,
    media_type_of,
    moved,
    read_data_url,
    shifted,
    split_content,
)
from pagantic_common.domain.messages import Message, Role, check_messages
from tests.support.sample_images import GIF, PNG, sample_image

ICON = image_of("image/png", sample_image(PNG))
BANNER = image_of("image/gif", sample_image(GIF))
PARTS = st.lists(st.text(min_size=1, max_size=5) | st.sampled_from([ICON, BANNER]), max_size=8)


def user(*parts):
    content, images = join_parts(parts)
    return Message(Role.USER, content, images=images)


def order(message):
    return [
        part if isinstance(part, str) else part.media_type for part in split_content(message.content, message.images)
    ]


@given(PARTS)
def test_a_message_with_images_survives_the_codec(parts):
    message = user(*parts)
    assert message_from_proto(message_to_proto(message)) == message


@given(PARTS)
def test_parts_come_back_in_their_order_with_neighbouring_texts_joined(parts):
    texts = "".join(part for part in parts if isinstance(part, str))
    again = list(split_content(*join_parts(parts)))
    assert "".join(part for part in again if isinstance(part, str)) == texts
    assert [part.data for part in again if isinstance(part, Image)] == [p.data for p in parts if isinstance(p, Image)]
    assert join_parts(again) == join_parts(parts)


def test_an_encoded_message_has_the_texts_of_its_parts_as_its_content():
    encoded = message_to_proto(user("What is ", ICON, "this?"))
    assert encoded.content == "What is this?"
    assert [part.WhichOneof("part") for part in encoded.parts] == ["text", "image", "text"]
    assert encoded.parts[1].image.data == sample_image(PNG)


@pytest.mark.parametrize("content", ["", "What is this?"])
def test_the_content_beside_parts_is_empty_or_their_texts(content):
    encoded = message_to_proto(user("What is ", ICON, "this?"))
    encoded.content = content
    assert message_from_proto(encoded).content == "What is this?"


def test_another_content_beside_parts_is_refused():
    encoded = message_to_proto(user("What is ", ICON, "this?"))
    encoded.content = "something else"
    with pytest.raises(InvalidRequest, match="content is not the texts of its parts"):
        message_from_proto(encoded)


def test_an_empty_part_is_refused():
    with pytest.raises(InvalidRequest, match="a part of a message is empty"):
        message_from_proto(message_pb2.Message(role=message_pb2.ROLE_USER, parts=[message_pb2.ContentPart()]))


def test_an_image_alone_is_a_message():
    check_messages([user(ICON)])


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (Message(Role.SYSTEM, "hi", images=(ICON,)), "must not carry images"),
        (Message(Role.ASSISTANT, "hi", images=(ICON,)), "must not carry images"),
        (user(image_of("image/tiff", b"II*\0")), "media type 'image/tiff': send one of image/png"),
        (user(image_of("image/png", sample_image(GIF))), "image 0 is no image/png: its data does not begin like one"),
        (user("a", image_of("image/png", b"")), "does not begin like one"),
        (user(image_of("image/png", b"\x89PNG\r\n\x1a\n" + bytes(MAX_IMAGE_BYTES))), f"at most {MAX_IMAGE_BYTES} are"),
        (user(*[ICON] * (MAX_IMAGES + 1)), f"has {MAX_IMAGES + 1} images|have {MAX_IMAGES + 1} images"),
    ],
)
def test_an_image_that_cannot_be_sent_is_refused(message, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        check_messages([message])


@given(st.binary(max_size=40))
def test_the_size_of_an_image_is_that_of_its_file(data):
    image = image_of("image/png", data)
    assert (image.size_bytes, file_of(image)) == (len(data), data)


@given(st.text(max_size=30))
def test_a_text_that_is_no_data_url_is_refused(url):
    with pytest.raises(InvalidRequest, match="addresses are not fetched"):
        read_data_url(url, "here")


def test_a_data_url_is_the_image_that_it_was_made_of():
    assert read_data_url(ICON.url, "here") == ("image/png", sample_image(PNG))


def test_a_data_url_is_measured_before_it_is_decoded():
    with pytest.raises(InvalidRequest, match="send a smaller image"):
        read_data_url("data:image/png;base64," + "A" * (MAX_IMAGE_BYTES * 2), "here")
    with pytest.raises(InvalidRequest, match="no base64 after the comma"):
        read_data_url("data:image/png;base64,!!!!", "here")


@given(PARTS, st.text(max_size=5))
def test_a_text_put_before_moves_every_image_with_the_text_after_it(parts, before):
    content, images = join_parts(parts)
    found = list(split_content(before + content, shifted(images, len(before))))
    assert join_parts(found) == join_parts([before, *parts])


def test_an_image_keeps_its_neighbours_when_a_guard_redacts_a_text():
    message = user("Call 555-0100 about ", ICON, " please ", BANNER)
    content = message.content.replace("555-0100", "[PHONE]")
    changed = Message(Role.USER, content, images=moved(message.images, message.content, content))
    assert order(changed) == ["Call [PHONE] about ", "image/png", " please ", "image/gif"]


@given(PARTS, st.text(max_size=20))
def test_images_stay_in_their_order_and_inside_whatever_text_takes_the_place_of_theirs(parts, text):
    content, images = join_parts(parts)
    offsets = [image.offset for image in moved(images, content, text)]
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in offsets)


def test_a_client_names_files_and_the_message_has_their_types(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(sample_image(GIF))
    message = user_message("one ", path, sample_image(PNG))
    assert [part.image.media_type for part in message.parts] == ["", "image/gif", "image/png"]
    check_messages([message_from_proto(message)])


def test_a_client_refuses_a_file_that_is_no_image(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("hello")
    with pytest.raises(ValueError, match=r"a\.txt' is no PNG"):
        user_message(path)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"GIF90a", ""),
        (b"<svg", ""),
        (b"", ""),
    ],
)
def test_a_type_is_told_by_the_beginning_of_a_file(data, expected):
    assert media_type_of(data) == expected
    assert media_type_of(base64.b64encode(data)) == ""
