"""Decodes image files in a worker process: files are untrusted, and a small file can have very many pixels."""

from __future__ import annotations

import base64
import io

import PIL.Image
from PIL import GifImagePlugin, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.images import MAX_PIXELS

MAX_SIDE_PIXELS = 1536
_FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
# Encoders scale images down, which would leave no pixels on the short side of a longer image.
MAX_RATIO = 50
_COLOR_BEHIND_TRANSPARENT_PIXELS = "white"

# The process imports the plugins of these formats before its memory is bounded.
PLUGINS = (GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)


def decode_image(media_type: str, data: str) -> tuple[int, int, str]:
    """Decode a base64-encoded image file to its width, its height and its pixels in base64.

    The image is upright and opaque, and has at most MAX_SIDE_PIXELS on a side. Raises InvalidRequest if the file is
    damaged, is of another type, or has too many pixels.
    """
    PIL.Image.MAX_IMAGE_PIXELS = None  # `_check_size` bounds the pixels
    try:
        with PIL.Image.open(io.BytesIO(base64.b64decode(data)), formats=[_FORMATS[media_type]]) as file:
            _check_size(*file.size)  # the size comes from the header, so no pixel is decoded yet
            file.draft("RGB", (MAX_SIDE_PIXELS, MAX_SIDE_PIXELS))  # a JPEG can be decoded at a fraction of its size
            image = _opaque(ImageOps.exif_transpose(file))
    except (InvalidRequest, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - a damaged file makes the library raise errors of many kinds
        raise InvalidRequest(
            f"an image is no {media_type} that can be read: it is damaged or of another type"
        ) from None
    image.thumbnail((MAX_SIDE_PIXELS, MAX_SIDE_PIXELS))
    return image.width, image.height, base64.b64encode(image.tobytes()).decode()


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise InvalidRequest(f"an image has {width} x {height} pixels, at most {MAX_PIXELS} are taken: make it smaller")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidRequest(
            f"an image has {width} x {height} pixels: one side may be at most {MAX_RATIO} times as long as the other"
        )


def _opaque(image: PIL.Image.Image) -> PIL.Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    colored = image.convert("RGBA")
    opaque = PIL.Image.new("RGB", colored.size, _COLOR_BEHIND_TRANSPARENT_PIXELS)
    opaque.paste(colored, mask=colored)
    return opaque
