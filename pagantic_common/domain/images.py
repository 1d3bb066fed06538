"""Images in messages: their limits, and their positions in the text. This module does not decode images."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pagantic_common.domain.errors import InvalidRequest

MAX_IMAGES = 32
MAX_IMAGE_BYTES = 8 * 1024 * 1024
MAX_PIXELS = 32_000_000
# Only a model's encoder can count the tokens of an image. Limits use the maximum, and other code uses this estimate.
ESTIMATED_TOKENS = 1024
MOST_TOKENS = 4096
_BEGINNINGS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "image/gif": re.compile(rb"GIF8[79]a"),
}
_BEGINNING_BASE64_CHARS = 16
_DATA_URL = re.compile("data:([^;,]{1,64});base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Image:
    """An image file in a message.

    Attributes:
        media_type: One of image/png, image/jpeg, image/webp and image/gif.
        data: The file in base64, because the journal keeps requests as JSON.
        offset: The number of characters of the message's content that precede the image.
    """

    media_type: str
    data: str = field(repr=False)
    offset: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        return len(self.data) // 4 * 3 - self.data[-2:].count("=")

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return f"data:{self.media_type};base64,{self.data}"


def image_of(media_type: str, data: bytes, offset: int = 0) -> Image:
    """Return an image with the content of a file."""
    return Image(media_type, base64.b64encode(data).decode(), offset)


def file_of(image: Image) -> bytes:
    """Return the bytes of an image file."""
    return base64.b64decode(image.data)


def media_type_of(data: bytes) -> str:
    """Return the media type that a file's first bytes indicate, or an empty string if the type is not accepted."""
    return next((name for name, beginning in _BEGINNINGS.items() if beginning.match(data)), "")


def read_data_url(url: str, place: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a data URL. Raises InvalidRequest for any other URL."""
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidRequest(
            f"{place} is no data URL in base64: addresses are not fetched, so send the image itself, as "
            "data:image/png;base64,..."
        )
    if len(url) - head.end() > 4 * (MAX_IMAGE_BYTES // 3 + 1):
        raise _too_large(place, (len(url) - head.end()) // 4 * 3)
    try:
        return head[1].lower(), base64.b64decode(url[head.end() :], validate=True)
    except binascii.Error:
        raise InvalidRequest(f"{place} is no base64 after the comma") from None


def check_image(image: Image, place: str) -> None:
    """Raise InvalidRequest if an image is too large, has an unsupported type, or does not match its type."""
    beginning = _BEGINNINGS.get(image.media_type)
    if beginning is None:
        media_types = ", ".join(_BEGINNINGS)
        raise InvalidRequest(f"{place} has the media type {image.media_type[:64]!r}: send one of {media_types}")
    if image.size_bytes > MAX_IMAGE_BYTES:
        raise _too_large(place, image.size_bytes)
    if not beginning.match(base64.b64decode(image.data[:_BEGINNING_BASE64_CHARS])):
        raise InvalidRequest(f"{place} is no {image.media_type}: its data does not begin like one")


def check_count(count: int) -> None:
    """Raise InvalidRequest if a request has too many images."""
    if count > MAX_IMAGES:
        raise InvalidRequest(
            f"the messages have {count} images, at most {MAX_IMAGES} are taken: leave older ones out, or begin a new "
            "conversation"
        )


def split_content(content: str, images: Sequence[Image]) -> Iterator[str | Image]:
    """Yield the non-empty texts and the images of a message, in order."""
    start = 0
    for image in images:
        if text := content[start : image.offset]:
            yield text
        start = max(start, image.offset)
        yield image
    if text := content[start:]:
        yield text


def join_parts(parts: Sequence[str | Image]) -> tuple[str, tuple[Image, ...]]:
    """Return the content made of the texts, in order, and the images with their positions in the content."""
    content = ""
    images: list[Image] = []
    for part in parts:
        if isinstance(part, str):
            content += part
        else:
            images.append(replace(part, offset=len(content)))
    return content, tuple(images)


def shifted(images: Sequence[Image], chars: int) -> tuple[Image, ...]:
    """Return the images of a text, moved for a text with `chars` more characters at its start."""
    return tuple(replace(image, offset=image.offset + chars) for image in images)


def moved(images: Sequence[Image], before: str, after: str) -> tuple[Image, ...]:
    """Return the images of a text, moved to fit the text that replaces it.

    An image before the first change keeps its position, and a later image keeps its distance from the end.
    """
    shared = min(len(before), len(after))
    same = next((index for index in range(shared) if before[index] != after[index]), shared)
    grown = len(after) - len(before)
    return tuple(
        replace(image, offset=max(same, image.offset + grown) if image.offset > same else image.offset)
        for image in images
    )


def _too_large(place: str, size_bytes: int) -> InvalidRequest:
    return InvalidRequest(f"{place} has {size_bytes} bytes, at most {MAX_IMAGE_BYTES} are taken: send a smaller image")
