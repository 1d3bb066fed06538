"""Reads an operator's file of JSON at the start: its size, its form, and the place of what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from pagantic_common.domain.errors import InvalidRequest

MAX_FILE_BYTES: Final = 1024 * 1024

Form = TypeVar("Form", bound=BaseModel)


def read_json_file(path: Path, form: type[Form], where: str) -> Form:
    """Return the content of a file; raises InvalidRequest that names what is wrong and where.

    Args:
        path: The file, of at most 1 MiB.
        form: What it must be.
        where: The setting and the file, for the message.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{where} has more than {MAX_FILE_BYTES} bytes")
    try:
        return form.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{where} is not valid: {place + ': ' if place else ''}{first['msg']}") from None
